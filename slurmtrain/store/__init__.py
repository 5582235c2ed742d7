"""Checkpoints without tensors: manifest, commit protocol, listing, verification of bytes, leases, retention, room on the disk.

- A checkpoint is visible only after one rename of a folder whose files, and whose manifest, are on stable storage.
- Nothing is overwritten; what is damaged is set aside, not deleted; the newest that verifies, and what somebody reads, is never removed.
- Every change of the file system goes through `slurmtrain.syscalls`, so that tests cut, refuse and unplug it at every call.
- Verification needs neither h5py nor torch: sizes and xxh3_64 sums of chunks of bytes.
- What is kept is a pure function of a list of steps.
"""
