"""Checkpoints without tensors: manifest, commit protocol, listing, verification of bytes, retention, newest durable step.

- A checkpoint is visible only after one rename of a folder whose files, and whose manifest, are on stable storage.
- Verification needs neither h5py nor torch: sizes and xxh3_64 sums of chunks of bytes.
- What is kept is a pure function of a list of steps; the newest that verifies is never removed.
"""
