"""What is slow and what is not: no healthy row of the hardware table, no noise, and no collective held to a nominal rate."""

from __future__ import annotations

import random
from collections import defaultdict
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.preflight.rates import CPU, GPU, NIC_SHARE, STORAGE, Kind, judged, rule_of, slow
from tests.preflight.hardware import measured_rows

KIND = Kind("world_reduce_gb_s", 1 << 28, 8, "H100")


def no_baseline(kind: Kind) -> None:
    return None


def slow_of(values, share=0.9, kind=KIND, recorded=no_baseline):
    return slow({index: (kind, value) for index, value in enumerate(values)}, share, recorded)


def kinds_of(rows) -> dict[Kind, list[float]]:
    """By what may be compared: the measurement with its algorithm, the payload, how many took part, and on what."""
    found = defaultdict(list)
    for row in rows:
        device = f"{row.component}, {row.metric}, {row.algorithm}"
        found[Kind("world_reduce_gb_s", row.payload, row.members, device)].append(row.value)
    return found


def test_no_healthy_row_of_the_hardware_table_is_slow_against_rows_of_its_kind():
    kinds = kinds_of(measured_rows())
    assert sum(len(values) for values in kinds.values()) > 150
    assert len({kind.size for kind in kinds}) > 20
    for share in (GPU.share, CPU.share):
        for kind, values in kinds.items():
            for recorded in values:
                rates = {index: (kind, value) for index, value in enumerate(values)}
                assert slow(rates, share, {kind: recorded}.get) == {}, kind


def test_nor_against_peers_that_measured_the_same_with_the_spread_of_a_real_sweep():
    """Five runs of each row within 2 %: what repeats of nccl-tests on one machine differ by."""
    chance = random.Random(7)
    for kind, values in kinds_of(measured_rows()).items():
        peers = [value * (1 - 0.02 * chance.random()) for value in values for _ in range(5)]
        assert slow_of(peers, kind=kind) == {} or max(peers) / min(peers) > 1.1, kind


def test_rows_of_another_size_number_or_device_are_never_compared():
    rows = [row for row in measured_rows() if "all_reduce_busbw" in row.metric and row.component == "8x H200 (NVLink 4)"]
    rates = {index: (Kind("domain_reduce_gb_s", row.payload, row.members, "H200"), row.value) for index, row in enumerate(rows)}
    assert max(value for _, value in rates.values()) > 300 * min(value for _, value in rates.values())
    assert slow(rates, 0.9, no_baseline) == {}
    largest = Kind("domain_reduce_gb_s", max(row.payload for row in rows), 8, "H200")
    others = {key: value for key, value in rates.items() if value[0] != largest}
    assert slow(others, 0.9, {largest: 480.0}.get) == {}


def test_a_collective_is_not_held_to_what_its_nics_have_in_name():
    """The table's own figure of a healthy all-reduce: 36.95 of 50 GB/s."""
    row = next(row for row in measured_rows() if row.metric == "per_accelerator_internode_rate")
    assert row.value < NIC_SHARE * 50
    assert slow_of([row.value], recorded={KIND: row.value}.get) == {}


def test_slow_is_less_than_90_percent_of_the_baseline_or_of_the_median_of_others():
    assert list(slow_of([89.9, 90.0, 200.0], recorded={KIND: 100.0}.get)) == [0]
    assert list(slow_of([100.0, 101.0, 102.0, 90.8])) == [3]
    assert slow_of([100.0, 101.0, 102.0, 90.9]) == {}
    assert str(slow_of([10.0, 10.0, 10.0, 5.0])[3]) == "5 GB/s, and 10 GB/s is the median of 3 others"


def test_fewer_than_three_peers_and_no_baseline_judge_nothing():
    rates = {index: (KIND, value) for index, value in enumerate([100.0, 100.0, 1.0])}
    assert slow(rates, 0.9, no_baseline) == {}
    assert not judged(rates, no_baseline)
    assert judged(rates, {KIND: 100.0}.get)
    assert judged({**rates, 3: (KIND, 100.0)}, no_baseline)


@given(st.lists(st.floats(1.0, 1000.0), min_size=4, max_size=12))
def test_each_is_compared_with_the_median_of_all_others(values):
    expected = {i for i, value in enumerate(values) if value < 0.9 * median(values[:i] + values[i + 1 :])}
    assert set(slow_of(values)) == expected


def test_rules():
    assert rule_of("pair_gb_s", on_gpus=True) == GPU
    assert rule_of("matmul_tflops", on_gpus=False) == CPU
    assert rule_of("write_mb_s", on_gpus=True) == rule_of("read_mb_s", on_gpus=False) == STORAGE
    assert (GPU.share, NIC_SHARE) == (0.9, 0.8)


@pytest.mark.parametrize("nodes", [4, 6, 16])
def test_processes_that_share_cores_are_not_taken_for_slow_ones(nodes):
    """A process is at half of its fair share for a while, or at a quarter now and then: in 50 preflights nobody is blamed."""
    chance, blamed = random.Random(nodes), 0
    for _ in range(50):
        suspects = set(range(nodes))
        for _ in range(CPU.tries):
            values = [chance.choice([1.0, 0.9, 0.7, 0.5, 0.25]) * (0.8 + 0.4 * chance.random()) for _ in range(nodes)]
            suspects &= set(slow_of(values, CPU.share))
        blamed += len(suspects)
    assert blamed == 0
