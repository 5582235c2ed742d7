"""The programs that measure checkpoints: all rows run, the output is well formed, nothing stays behind; paper agrees with a real save."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench"
KEYS = {"name", "row", "contender", "ratio", "goal", "spread", "state", "value", "unit", "repeats", "against"}
FILES = {"ours", "raw", "DCP", "torch.save", "safetensors"}


def command(program: str, *words: str) -> list[str]:
    return [sys.executable, str(BENCH / program), *words]


def output_of(program: str, *words: str):
    ended = subprocess.run(command(program, *words), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    return folder, output_of("checkpoint.py", "--json", "--quick", "--folder", str(folder))


def test_all_rows_run_and_are_well_formed(quick):
    _, found = quick
    rows = found["rows"]
    assert found["machine"]["cores"] > 0
    assert not [note for note in found["notes"] if note.startswith("left out")]
    for row in rows:
        assert row.keys() == KEYS
        assert 0 < row["ratio"] < math.inf
        assert row["value"] > 0
        assert row["state"] in ({"met", "missed", "within noise"} if row["goal"] else {""})
    assert len({row["name"] for row in rows}) == len(rows)
    beside = {name: {row["contender"] for row in rows if row["row"] == name} for name in {row["row"] for row in rows}}
    assert len(beside) == 9 + 4 + 1 + 2
    for name, contenders in beside.items():
        if name.startswith(("write", "warm read 2", "cold read 2", "warm read 4", "cold read 4")):
            assert contenders == FILES, name
        assert "ours" in contenders, name
        assert len(contenders) > 1, name


def test_goals_are_those_of_the_table(quick):
    _, found = quick
    goals = {row["row"]: row["goal"] for row in found["rows"] if row["contender"] == "ours"}
    expected = {
        "write 4 MB, 2 ranks": 0.95,
        "cold read 4 MB, 1 rank": 0.95,
        "warm read 4 MB, 1 rank": 0.6,
        "write 200 x 8 kB, 1 rank": 0.5,
        "cold read 200 x 8 kB, 1 rank": 0.5,
        "warm read 200 x 8 kB, 1 rank": 0.5,
        "cold read of 1/8 of rows of 1024 x 1024": 2.0,
        "cold read of 1/8 of columns of 1024 x 1024": 3.0,
        "async stall of 2 MB, 1 rank": 0.9,
        "resume of 4 MB, 2 ranks: memory": 1.0,
    }
    assert {name: goals[name] for name in expected} == expected


def test_nothing_stays_behind(quick):
    folder, _ = quick
    assert not list(folder.iterdir())


def test_nothing_stays_behind_on_ctrl_c(tmp_path):
    words = command("checkpoint.py", "--quick", "--rows", "write", "--folder", str(tmp_path))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("write"):
                break
        assert list(tmp_path.iterdir()), "it had ended before it was told to"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert not list(tmp_path.iterdir())


def test_ratios_are_taken_within_a_repeat(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from checkpoint_results import Goal, rows_of

    goal = Goal("write", "raw", 1.1, writes=True)
    raw, ours = rows_of(goal, [1.0, 2.0, 4.0], {"raw": [1.0, 2.0, 4.0], "ours": [2.0, 2.0, 2.0]})
    assert (raw.ratio, raw.goal, raw.state) == (1.0, None, "")
    assert (ours.ratio, ours.value, ours.repeats) == (1.0, 2.0, 3)  # of 0.5, 1, 2
    assert ours.spread == pytest.approx(1.5 - 0.75)
    assert ours.state == "within noise"
    assert rows_of(Goal("read", "raw", 1.1), [1.0], {"ours": [1.0]})[0].state == "missed"


def on_sixteen_ranks(*words: str):
    """Of two nodes, on paper and really saved."""
    layout = ("--model", "tiny", "--nodes", "2", "--per-node", "8", "--tp", "2", "--pp", "2")
    return output_of("checkpoint_scale.py", "--json", "--real", *layout, *words)


@pytest.fixture(scope="module")
def sixteen():
    return on_sixteen_ranks("--writers", "1")


def check_against_a_real_save(found, writers):
    state = found["parameters"] * 12 + 16 * 5056  # weights and two moments in fp32, a generator a rank
    for row, count in zip(found["rows"], writers, strict=True):
        real = {name: size for name, size in row["real"]["files"].items() if name != "manifest.json"}
        assert row["writers"] == len(real) == count
        assert row["files"] == real
        assert row["bytes"] == sum(real.values())
        assert row["entries"] == len(row["real"]["files"])
        assert row["manifest_bytes"] == pytest.approx(row["real"]["files"]["manifest.json"], rel=0.1)  # times and sums differ
        assert state <= row["bytes"] <= state + count * (row["structure_bytes"] + 64 * 4096)  # structure, and gaps between boxes
        for deed, counts in row["real"]["operations"].items():
            formula = {kind: number for kind, number in row["operations"][deed].items() if number}
            assert formula == pytest.approx(counts), (deed, count)


def test_files_and_operations_on_paper_are_those_of_a_real_save(sixteen):
    check_against_a_real_save(sixteen, (2,))


@pytest.mark.long
def test_files_and_operations_on_paper_are_those_of_a_real_save_of_many_writers():
    check_against_a_real_save(on_sixteen_ranks("--writers", "8,4,1"), (16, 8, 2))


def test_no_storm_of_operations(sixteen):
    """What the issue asks for: files and names that grow with the writers alone, and ranks that open a file each."""
    costs = sixteen["formulas"]
    assert costs["save"]["create"] == {"once": 1.0, "each_writer": 1.0, "each_rank": 0.0}
    assert costs["save"]["rename"] == {"once": 1.0, "each_writer": 0.0, "each_rank": 0.0}
    assert costs["load"]["open"]["each_rank"] == 1.0
    assert costs["load"]["list"]["each_rank"] == costs["load"]["stat"]["each_rank"] == 0.0
