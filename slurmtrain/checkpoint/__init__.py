"""Parts of tensors to HDF5 and back: each rank writes its boxes into its own file; loading is intersection of boxes.

- Nothing is pickled, loading executes no code; names, shapes and offsets are in the manifest.
- `h5` needs numpy and h5py alone; `state` joins it to torch.
"""
