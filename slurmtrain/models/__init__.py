"""Single-device maths only: no process groups, no sharding, no files.

- `llama` is the model on one device; its parameter names are the fixed names of the global tensors (`names` lists them with
  their shapes), unfused and unpadded, whatever a rank holds.
- `initial` gives every global tensor its first values, from (seed, name) alone.

Shape letters: B batch, T sequence, D hidden, H heads, K kv heads, E head dim, F ffn, V vocabulary.
"""
