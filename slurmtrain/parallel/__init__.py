"""Explicit parallelism on plain local tensors; yields parts (boxes of global tensors); `apply.py` alone knows the order.

- Every explicit autograd function returns contiguous tensors, forward and backward.
- *axis* is a mesh axis, *dim* a tensor dimension.
"""
