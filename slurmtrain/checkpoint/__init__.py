"""Parts of tensors to HDF5 and back: each rank writes its boxes into its own file; loading is intersection of boxes.

- Nothing is pickled, loading executes no code; names, shapes and offsets are in the manifest.
- `state` and `hf` alone know torch: `h5`, `save`, `load` and `hf_export` work on numpy arrays, so that a process without torch can
  save, load and export.
- A failure on one rank is gathered and raised on all of them alike; what is half written is never published (store.commit).
"""
