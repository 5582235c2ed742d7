"""The table of recovery: it has a row for every kind of drill or says why not, compares what scripts print, and (long) its rows are ok."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurmtrain.report.drilled import nothing
from slurmtrain.resilience.drills import NAMES, kind_of
from tests.fixtures_slurm import clean_environ, need_slurm

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench"


@pytest.fixture
def bench(monkeypatch):
    """The bench's modules by name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def test_every_kind_has_a_row_or_a_reason(bench):
    table = bench("recovery_table")
    rows = [entry.kind for entry in table.ENTRIES]
    assert sorted([*rows, *table.LEFT_OUT]) == sorted(NAMES)
    for entry in table.ENTRIES:
        kind = kind_of(entry.kind)
        assert entry.went in kind.went
        assert bool(entry.act or entry.prepare) == (kind.way == "hand"), entry.kind
        assert entry.spares or "spare" not in entry.kind.removesuffix("no-spare")


def test_patterns_choose_rows(bench):
    wanted = bench("recovery_table").wanted
    assert [one.kind for one in wanted("exit,node-l*")] == ["exit", "node-lost", "node-lost-no-spare"]
    assert len(wanted("*")) == len(bench("recovery_table").ENTRIES)
    assert wanted("compare") == ()


LINES = [(10.0, 1, "5.0"), (11.0, 2, "4.0"), (12.0, 3, "3.0"), (13.0, 4, "2.5"), (20.0, 3, "3.0"), (21.0, 4, "2.5")]


@pytest.mark.parametrize(("final", "equal"), [("2.0", True), ("2.1", False)])
def test_a_side_of_the_comparison(bench, final, equal):
    """Steps 3 and 4 are made twice after a kill at 13.5; the script began at 4."""
    compare = bench("recovery_compare")
    lines = compare.Lines("log", Path())
    lines.seen = [*LINES, (22.0, compare.STEPS, "2.0")]
    side = compare._side("x", lines, 4.0, 13.5, final)
    assert (side.cold_start_s, side.first_step_s, side.steps_lost, side.loss_equal) == (6.0, 6.5, 2, equal)


def test_lines_of_several_files_are_taken_once_and_only_whole(bench, tmp_path):
    lines = bench("recovery_compare").Lines("*.log", tmp_path)
    one = tmp_path / "a.log"
    one.write_text("step 1 loss 2.5\nstep 2 loss 1.")
    lines._take(one)
    one.write_text("step 1 loss 2.5\nstep 2 loss 1.75\n")
    lines._take(one)
    assert [(step, loss) for _, step, loss in lines.seen] == [(1, "2.5"), (2, "1.75")]


def test_a_line_of_the_table(bench):
    line = bench("recovery_print").line_of(nothing("exit", "the bench: no"))
    assert line.split()[:2] == ["exit", "NOT"]
    assert "(the bench: no)" in line


ROWS = "exit,sigkill,sigstop,node-*,batch-host-*,*-killed,term,two-signals,save-interrupted,shard-corrupted,bitflip,memory"


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.long
def test_rows_are_ok():
    """On a cluster of its own; the losses are those of an undisturbed run, bit for bit."""
    need_slurm()
    argv = [sys.executable, str(BENCH / "recovery.py"), "--json", "--rows", ROWS, "--at-once", "2"]
    done = subprocess.run(argv, env=clean_environ(), capture_output=True, text=True, timeout=3000, check=False)
    assert done.stdout, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert [row["kind"] for row in found["rows"] if not row["ok"]] == [], done.stderr
    assert len(found["rows"]) >= 16
    assert done.returncode == 0
