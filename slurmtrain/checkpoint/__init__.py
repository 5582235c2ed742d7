"""Parts of tensors to HDF5 and back: each rank writes its boxes into its own file; loading is intersection of boxes.

- Nothing is pickled, loading executes no code; names, shapes and offsets are in the manifest.
- Files are ordinary HDF5, laid out by HDF5 in memory (`skeleton`) and written around (`writing`); they are read at known places, without
  HDF5 (`reading`), so that no content of a file can crash the interpreter.
- Modules whose names begin with `state`, `hf` and `dcp` alone know torch: a process without it can save, load and export.
- A failure on one rank is gathered and raised on all of them alike; what is half written is never published (store.commit).
"""
