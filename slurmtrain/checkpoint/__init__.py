"""Parts of tensors to HDF5 and back: each rank writes its boxes into its own file; loading is intersection of boxes.

- Nothing is pickled, loading executes no code; names, shapes and offsets are in the manifest.
- `state` alone knows torch: `h5`, `save` and `load` work on numpy arrays, so that a process without torch can save and load.
- A failure on one rank is gathered and raised on all of them alike; what is half written is never published (store.commit).
"""
