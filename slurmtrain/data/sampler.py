"""The order of samples: a permutation per epoch, computed and never stored; a function of (seed, epoch, sample index) alone.

A Feistel network permutes the numbers below 2^b, the least power of two that is not below n; a result of n or more is permuted
again until it is below n (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002), fewer than two turns
on average. The definition, all arithmetic modulo 2^64:

    mix(z)       z ^= z>>30; z *= 0xbf58476d1ce4e5b9; z ^= z>>27; z *= 0x94d049bb133111eb; z ^= z>>31      (SplitMix64's finaliser)
    G            0x9e3779b97f4a7c15
    h            mix(mix(seed + G) + epoch + G)
    key_r        mix(h + (r + 1) G)                                     r = 0 .. 7
    x            left = x >> (b - b//2) of b//2 bits, right = the other b - b//2 bits
    round r      (left, right) = (right, left ^ (mix(right + key_r) mod 2^(bits of left)))

The widths of the two halves change places in each round; after eight of them they are back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

ROUNDS = 8
_MASK = (1 << 64) - 1
_G = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    z &= _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=8)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    base = _mix(_mix(seed + _G) + epoch + _G)
    return tuple(_mix(base + (r + 1) * _G) for r in range(ROUNDS))


def permuted(index: int, n: int, seed: int, epoch: int) -> int:
    """Where `index` of 0..n-1 goes in the order of an epoch; a bijection of 0..n-1."""
    assert 0 <= index < n, (index, n)
    bits = (n - 1).bit_length()
    keys = _keys(seed, epoch)
    while True:
        left_bits, right_bits = bits // 2, bits - bits // 2
        left, right = index >> right_bits, index & ((1 << right_bits) - 1)
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & ((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        index = left << right_bits | right
        if index < n:
            return index


def seed_of_source(seed: int, number: int) -> int:
    """The seed of a source of a mixture: sources of equal length must not be shuffled alike; the first keeps the run's seed."""
    return seed if number == 0 else _mix(_mix(seed + _G) ^ (number * _G & _MASK))


@dataclass(frozen=True)
class Sampler:
    """Samples 0..n_samples-1, shuffled anew in each epoch, for ever.

    A position counts samples consumed by the whole run, over epochs; nothing else needs to be saved, and dp size plays no part.
    """

    n_samples: int
    seed: int

    def __post_init__(self) -> None:
        assert self.n_samples >= 1, self.n_samples

    def epoch_of(self, position: int) -> int:
        """The epoch that the sample at this position belongs to, from 0."""
        return position // self.n_samples

    def index_of(self, position: int) -> int:
        """The sample at this position."""
        epoch, index = divmod(position, self.n_samples)
        return permuted(index, self.n_samples, self.seed, epoch)
