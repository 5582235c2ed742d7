"""Single-device maths only: no process groups, no sharding, no files.

- `decoder` is the model of every family on one device; its parameter names are the fixed names of the global tensors (`names`
  lists them with their shapes), unfused and unpadded, whatever a rank holds.
- `rotary`, `attention` and `layers` are the maths that it shares with every parallel layout.
- `initial` gives every global tensor its first values, from (seed, name) alone.

Shape letters: B batch, T sequence, D hidden, H heads, K kv heads, E head dim, F ffn, V vocabulary.
"""
