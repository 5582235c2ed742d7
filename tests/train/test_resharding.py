"""A run that is saved, ended and begun anew repeats the undisturbed one bit for bit; under another layout it has the same state."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from tests.mpi_world import run_world
from tests.parallel.layouts import MODEL
from tests.train.resharding import DROPPING_RING, of, repeats, reshards

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

HALF = 2
RING = {"model": DROPPING_RING}
LAYOUTS = {
    "one process": {"micro_batch": 4},
    "tp4": {"tp": 4, "micro_batch": 4},
    "dp4": {"dp": 4, "micro_batch": 2},
    "dp4 zero1": {"dp": 4, "dp_mode": "zero1", "micro_batch": 2},
    "dp4 zero2": {"dp": 4, "dp_mode": "zero2", "micro_batch": 2},
    "dp4 fsdp": {"dp": 4, "dp_mode": "fsdp", "micro_batch": 2},
    "dp4 fsdp, hybrid": {"dp": 4, "dp_mode": "fsdp", "dp_shard": 2, "micro_batch": 2},
    "cp2 ring dp2": {"cp": 2, "dp": 2, "micro_batch": 4, **RING},
    "cp4 ulysses": {"cp": 4, "cp_mode": "ulysses", "micro_batch": 4},
    "pp4 1f1b": {"pp": 4, "stages": (1, 1, 1, 1)},
    "pp2 dp2 interleaved": {"pp": 2, "dp": 2, "schedule": "interleaved"},
    "pp2 dp2 zbv, zero1": {"pp": 2, "dp": 2, "dp_mode": "zero1", "schedule": "zbv"},
    "tp2 pp2": {"tp": 2, "pp": 2, "micro_batch": 4},
    "tp2 dp2 fsdp": {"tp": 2, "dp": 2, "dp_mode": "fsdp", "micro_batch": 4},
}
PRECISIONS = ("fp32", "bf16", "fp16")
MODES = ("sync", "async")
QUICK = [of(name, MODES[i % 2], PRECISIONS[i % 3], **layout) for i, (name, layout) in enumerate(LAYOUTS.items())]
ALL = [of(name, mode, dtype, **layout) for (name, layout), dtype, mode in product(LAYOUTS.items(), PRECISIONS, MODES)]
RESHARDED = {
    name: layout
    for name, layout in LAYOUTS.items()
    if name in {"one process", "tp4", "dp4 zero1", "tp2 dp2 fsdp", "pp2 dp2 zbv, zero1", "cp2 ring dp2"}
} | {"cp2 ring dp2": {"cp": 2, "dp": 2, "dp_mode": "fsdp", "micro_batch": 4}}


def differences(answers, case):
    """Tensors by rank whose digests differ, and how many were compared."""
    pairs = [one[case.name] for one in answers if one[case.name] is not None]
    assert len(pairs) == case.layout.get("tp", 1) * case.layout.get("cp", 1) * case.layout.get("dp", 1) * case.layout.get("pp", 1)
    for straight, resumed in pairs:
        assert straight.keys() == resumed.keys()
    return [[name for name in straight if straight[name] != resumed[name]] for straight, resumed in pairs]


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    return run_world(repeats, QUICK, HALF, str(tmp_path_factory.mktemp("repeats")), tasks_per_node=4, timeout_s=300).results


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_resumed_run_repeats_the_undisturbed_one_bit_for_bit(repeated, case):
    assert not any(differences(repeated, case))


@pytest.mark.long
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_layout_in_every_precision_repeats_bit_for_bit(dtype, mode, tmp_path):
    cases = [case for case in ALL if case.mode == mode and case.training["dtype"] == dtype]
    assert len(cases) >= 12
    answers = run_world(repeats, cases, HALF, str(tmp_path), tasks_per_node=4, timeout_s=900).results
    assert not {case.name: found for case in cases if any(found := differences(answers, case))}


def check_pairs(answers, pairs):
    for pair in pairs:
        heard = [one[pair] for one in answers if pair in one]
        assert heard, pair
        for wrong, count, before, after in heard:
            assert count > 10, pair
            assert wrong == [], pair
            assert after == pytest.approx(before, rel=1e-5), pair


def test_any_layout_loads_what_any_other_saved(tmp_path):
    answers = run_world(reshards, RESHARDED, MODEL, str(tmp_path), tasks_per_node=4, timeout_s=300).results
    pairs = list(permutations(RESHARDED, 2))
    assert len(pairs) >= 30
    check_pairs(answers, pairs)


@pytest.mark.long
def test_all_pairs_of_layouts_reshard(tmp_path):
    layouts = {name: {k: v for k, v in layout.items() if k != "model"} for name, layout in LAYOUTS.items()}
    answers = run_world(reshards, layouts, MODEL, str(tmp_path), tasks_per_node=4, timeout_s=1500).results
    check_pairs(answers, permutations(layouts, 2))
