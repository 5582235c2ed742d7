"""Single-device maths only: no process groups, no sharding, no files.

Shape letters: B batch, T sequence, D hidden, H heads, K kv heads, E head dim, F ffn, V vocabulary.
"""
