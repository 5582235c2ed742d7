"""Indexed tokens (memory-mapped), the deterministic resumable sampler, the loader; numpy only, no torch.

- The order of samples is a function of (seed, epoch, sample index) alone: independent of dp size and of restarts.
"""
