"""Flight records: who never entered a collective, from records in the form that torch writes."""

from __future__ import annotations

import json

import pytest

from slurmtrain.resilience.flight import Missing, first_missing, groups_of, read_flight


def entry(seq: int, group: str = "0", name: str = "nccl:all_reduce", state: str = "completed", **more: object) -> dict[str, object]:
    """As torch 2.13 writes one."""
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 3}],
        "record_id": seq,
        "pg_id": int(group),
        "process_group": [group, "default_pg" if group == "0" else f"pg {group}"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "state": state,
        "is_p2p": False,
        "timeout_ms": 600000,
        **more,
    }


def record(*entries: dict[str, object], groups: dict[str, list[int]] | None = None, **more: object) -> dict[str, object]:
    config = {
        name: {"name": name, "desc": "default_pg" if name == "0" else f"pg {name}", "ranks": str(ranks)}
        for name, ranks in (groups or {"0": [0, 1, 2, 3]}).items()
    }
    return {"version": "2.10", "pg_config": config, "entries": list(entries), **more}


def found(records: dict[int, dict[str, object]]) -> Missing | None:
    return first_missing({rank: groups_of(json.loads(json.dumps(one))) for rank, one in records.items()})


def test_the_first_collective_that_a_rank_never_entered():
    records = {rank: record(*(entry(seq) for seq in range(1, 8))) for rank in (0, 1, 3)}
    records[2] = record(*(entry(seq) for seq in range(1, 5)))
    missing = found(records)
    assert missing == Missing("default_pg", 5, "all_reduce", (0, 1, 3), (2,))
    assert str(missing) == "rank 2 never entered all_reduce number 5 of group default_pg, where ranks 0 1 3 wait"


def test_when_all_have_entered_the_same_nothing_is_missing():
    assert found({rank: record(entry(1), entry(2, state="scheduled")) for rank in range(4)}) is None
    assert found({}) is None


def test_the_groups_of_a_mesh_have_long_names_and_are_told_by_their_axis():
    """As torch 2.13 writes them over gloo: no members, the status by number."""
    tp = {"process_group": ["ad56679d2c95f00a464e146ac76c2deb475d8262", "tp"], "pg_id": 2}
    status = {"0": {"last_enqueued_collective": "7"}, "2": {"last_enqueued_collective": "18"}}
    bare = {"pg_config": {"": {"desc": "", "name": "", "ranks": "[]"}}}
    records = {0: record(entry(17, **tp), entry(18, name="gloo:all_gather", **tp), pg_status=status) | bare}
    records[1] = record(entry(17, **tp), pg_status={**status, "2": {"last_enqueued_collective": "17"}}) | bare
    assert str(found(records)) == "rank 1 never entered all_gather number 18 of group tp, where rank 0 waits"


def test_who_waits_elsewhere_is_late_because_of_another():
    """Ranks 2 and 3 are a tensor-parallel pair. 3 stands still in Python; 2 waits for it, so both never come to the world's reduction."""
    groups = {"0": [0, 1, 2, 3], "5": [2, 3]}
    records = {rank: record(entry(1), entry(2, state="started")) for rank in (0, 1)}
    records[2] = record(entry(1), entry(9, "5", "nccl:all_gather"), entry(10, "5", "nccl:all_gather"), groups=groups)
    records[3] = record(entry(1), entry(9, "5", "nccl:all_gather"), groups=groups)
    assert found(records) == Missing("pg 5", 10, "all_gather", (2,), (3,))


def test_of_two_that_are_late_the_one_is_blamed_that_waits_for_nobody():
    """1 waits for 2, and 2 waits for 3."""
    first = {"groups": {"1": [1, 2], "5": [2, 3]}}
    records = {1: record(entry(4, "1"), **first), 2: record(entry(3, "1"), entry(9, "5"), **first), 3: record(entry(8, "5"), **first)}
    assert found(records).absent == (3,)
    other = {"groups": {"1": [2, 3], "5": [1, 2]}}
    turned = {1: record(entry(4, "5"), **other), 2: record(entry(3, "5"), entry(9, "1"), **other), 3: record(entry(8, "1"), **other)}
    assert found(turned).absent == (3,)


def test_a_rank_that_has_entered_nothing_of_a_group_is_missing_there():
    records = {0: record(entry(1)), 1: record(entry(1)), 2: record(), 3: record(entry(1))}
    assert found(records).absent == (2,)


def test_ranks_that_left_no_record_are_not_blamed():
    records = {0: record(entry(1), entry(2)), 3: record(entry(1))}
    assert found(records) == Missing("default_pg", 2, "all_reduce", (0,), (3,))


def test_what_the_ring_has_dropped_is_known_by_the_groups_status():
    status = {"0": {"last_enqueued_collective": 2000, "last_started_collective": 2000, "last_completed_collective": 1999}}
    records = {rank: record(entry(2000), pg_status=status) for rank in (0, 1)} | {2: record(pg_status=status)}
    assert found(records) is None
    late = {"0": {**status["0"], "last_enqueued_collective": 1990}}
    assert found(records | {2: record(pg_status=late)}) == Missing("default_pg", 1991, "a collective", (0, 1), (2,))


def test_sends_and_receives_do_not_count():
    """Their ranks differ by design."""
    records = {0: record(entry(1), entry(2, name="nccl:send 0->1", is_p2p=True)), 1: record(entry(1))}
    assert found(records) is None


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"entries":[{}]}', b'{"entries":3}', b'{"pg_config":{"0":{"ranks":"no"}}}', b"\x80\x04."])
def test_what_is_no_record_is_none(tmp_path, raw):
    (tmp_path / "record").write_bytes(raw)
    assert read_flight(tmp_path / "record") is None
    assert read_flight(tmp_path / "nowhere") is None
