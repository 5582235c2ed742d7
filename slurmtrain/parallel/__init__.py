"""Explicit parallelism on plain local tensors; yields parts (boxes of global tensors); `apply.py` alone knows the order.

- Inside, tensors are sequence first ([T, B, D]), so that the sequence is gathered and scattered along dim 0 without copies; with
  tp > 1 everything between attention and feed-forward lives on T / tp positions (sequence parallelism is always on).
- Every explicit autograd function returns contiguous tensors, forward and backward.
- Gradients are sums over tokens divided by the global number of tokens; every reduction is a SUM, nothing averages.
- *axis* is a mesh axis, *dim* a tensor dimension. A group is None where an axis has size 1.
"""
