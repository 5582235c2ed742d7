"""Checksums against another computation of the same; who is odd; and which ranks of which layouts hold the same."""

from __future__ import annotations

import pytest
import torch
import xxhash

from slurmtrain.config.model import ModelConfig
from slurmtrain.train.drills import flip_bit
from slurmtrain.train.replicas import Odd, checksum, odd_ones, weighted_sum
from tests.mpi_world import run_world
from tests.train.compared import compared

MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=50, rope_theta=1000.0)
TWO_64 = 1 << 64
MIX, NEXT = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def weight(number):
    mixed = signed(number * MIX)
    mixed = signed((mixed ^ (mixed >> 29)) * NEXT)
    return (mixed ^ (mixed >> 32)) | 1


def signed(number):
    return (number + TWO_64 // 2) % TWO_64 - TWO_64 // 2


def by_hand(chunks):
    total = 0
    for bits in chunks:
        total = total * NEXT + sum(bit * weight(i + 1) for i, bit in enumerate(bits))
    return signed(total)


def test_a_weighted_sum_by_hand():
    one = torch.tensor([1.0, -2.0, 0.5, 3.25, 1e-3])
    two = torch.tensor([1.0, -3.0], dtype=torch.bfloat16)
    bits = one.view(torch.int32).tolist(), two.view(torch.int16).tolist()
    assert weighted_sum([one, two], chunk=3).item() == by_hand([bits[0][:3], bits[0][3:], bits[1]])
    assert weighted_sum([one, two]).item() == by_hand(bits)


def test_the_checksum_of_memory_is_xxh3_of_its_bytes():
    one, two = torch.arange(6.0).view(2, 3).T, torch.tensor([7, 8], dtype=torch.int64)
    expected = xxhash.xxh3_64(one.contiguous().numpy().tobytes() + two.numpy().tobytes()).intdigest()
    assert checksum([one, two]).item() == signed(expected)
    assert checksum([]).item() == 0
    assert checksum([torch.empty(0), two]).item() == checksum([two]).item()


@pytest.mark.parametrize("make", [checksum, weighted_sum])
def test_any_one_bit_changes_it(make):
    tensors = [torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(4)]
    seen = {make(tensors).item()}
    for tensor in tensors:
        for bit in range(32):
            flip_bit(tensor, bit)
            seen.add(make(tensors).item())
            flip_bit(tensor, bit)
    assert len(seen) == 1 + 2 * 32
    tensors[0][1, 1], tensors[0][2, 2] = tensors[0][2, 2].clone(), tensors[0][1, 1].clone()
    assert make(tensors).item() not in seen, "places count"


@pytest.mark.parametrize(
    ("keys", "sums", "expected"),
    [
        ("aaaa", [5, 5, 5, 5], None),
        ("aaaa", [5, 5, 6, 5], Odd((2,), certain=True)),
        ("aaaa", [5, 7, 6, 5], Odd((0, 1, 2, 3), certain=False)),  # two of four are no majority
        ("aaaaa", [5, 7, 6, 5, 5], Odd((1, 2), certain=True)),
        ("abab", [5, 7, 6, 7], Odd((0, 2), certain=False)),
        ("abc", [1, 2, 3], None),
        (["", "", "a"], [1, 2, 3], None),
    ],
)
def test_who_is_odd(keys, sums, expected):
    assert odd_ones([[key] for key in keys], [[one] for one in sums]) == expected


def test_two_kinds_of_what_is_held():
    keys = [["a", "x"], ["b", "x"], ["a", "x"]]
    assert odd_ones(keys, [[1, 4], [2, 4], [1, 4]]) is None
    assert odd_ones(keys, [[1, 4], [2, 5], [1, 4]]) == Odd((1,), certain=True)
    assert odd_ones(keys, [[1, 4], [2, 5], [3, 4]]) == Odd((0, 1, 2), certain=False)


QUICK = ("ddp and tp", "zero1", "ddp and cp")
LAYOUTS = {
    "ddp of four": ({"dp": 4}, [{0, 1, 2, 3}]),
    "ddp and tp": ({"dp": 2, "tp": 2}, [{0, 2}, {1, 3}]),
    "ddp and cp": ({"dp": 2, "cp": 2}, [{0, 1, 2, 3}]),
    "ddp and pp": ({"dp": 2, "pp": 2}, [{0, 1}, {2, 3}]),
    "zero1": ({"dp": 4, "dp_mode": "zero1"}, [{0, 1, 2, 3}]),
    "zero2 in pairs": ({"dp": 4, "dp_mode": "zero2", "dp_shard": 2}, [{0, 2}, {1, 3}]),
    "fsdp": ({"dp": 4, "dp_mode": "fsdp"}, []),
    "fsdp in pairs": ({"dp": 4, "dp_mode": "fsdp", "dp_shard": 2}, [{0, 2}, {1, 3}]),
    "tp alone": ({"tp": 4}, []),
}
"""Layout to the sets of ranks that hold the same, by the definition of the mesh: dp slowest but for pp, tp fastest."""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(LAYOUTS), marks=pytest.mark.long)], ids=["some", "all"])
def test_layouts(names):
    world = run_world(compared, MODEL, {name: LAYOUTS[name][0] for name in names}, tasks_per_node=4)
    for name in names:
        sets = LAYOUTS[name][1]
        told = world.results[0][name]
        assert [one[name] for one in world.results] == [told] * 4, f"{name}: all ranks hear the same"
        assert told["equal"] == [None] * 3, f"{name}: after steps of training all are equal"
        for rank, odd in enumerate(told["flipped"]):
            peers = next((one for one in sets if rank in one), set())
            expected = Odd((rank,), True) if len(peers) > 2 else Odd(tuple(sorted(peers)), False) if peers else None
            assert odd == expected, f"{name}: a bit of rank {rank}"
        assert told["moment"] == (None if name == "zero1" else told["flipped"][1]), f"{name}: moments count, where two ranks hold them"
