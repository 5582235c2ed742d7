"""The small files around checkpoints, changed or torn in any way: they are understood, or taken for none, or refused in a line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.reports import Refusal, Report, leave_word, read_word
from slurmtrain.errors import SlurmtrainError
from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import asides, set_aside
from slurmtrain.store.leases import leased, pin
from slurmtrain.store.local import LocalNewest, make_rules, newest_local, read_rules
from slurmtrain.store.manifest import FileSum, StoredBox
from slurmtrain.store.origin import Origin, read_origin
from slurmtrain.syscalls import SYSTEM
from tests.checkpoint.fuzz_mutations import mutated_note

BOX = StoredBox(Box((0,), (4,)), "rank-00003.h5", "d", None, 16, 0)
WORD = Report(3, "rank-00003.h5", FileSum(100, ("0" * 16,)), {"model/w": ((4,), "float32")}, [("model/w", BOX)])


def notes(run):
    """Name to (path, what reads it)."""
    run.create()
    run.staging(10, 1).mkdir()
    for number, word in enumerate((WORD, Refusal(4, "disk full"))):
        leave_word(SYSTEM, run.staging(10, 1), number, word)
    run.checkpoint(5).mkdir()
    set_aside(run, 5, "damaged")
    assert pin(run, 10, "somebody", 1e9) is None
    run.origin_json.write_bytes(Origin(Path("/runs/a"), 4).to_json())
    make_rules(run)
    run.local_json.write_bytes(LocalNewest(5, 1, 2.0, ("n1",)).to_json())
    word, refusal = sorted(run.staging(10, 1).iterdir())
    return {
        "word": (word, lambda: read_word(word)),
        "refusal": (refusal, lambda: read_word(refusal)),
        "aside": (asides(run)[0].folder / "aside.json", lambda: asides(run)),
        "lease": (next(run.leases.iterdir()), lambda: leased(run, 1.0)),
        "origin": (run.origin_json, lambda: read_origin(run)),
        "rules": (run.local_rules, lambda: read_rules(run)),
        "local": (run.local_json, lambda: newest_local(run)),
    }


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.long)])
def test_notes_of_another_form(tmp_path, count):
    lines = []
    for what, (path, read) in notes(RunDir(tmp_path / "run")).items():
        good = path.read_bytes()
        assert read()
        for seed in range(count):
            path.write_bytes(mutated_note(random.Random(f"{what} {seed}"), good))
            try:
                read()
            except SlurmtrainError as error:
                lines.append(f"{what} {seed}: {error}")
        path.write_bytes(good)
    assert [line for line in lines if not line.isprintable()] == []
    assert len(lines) > count // 10


@pytest.mark.parametrize("changes", [{"tensors": []}, {"tensors": "O"}, {"sums": 5}, {"rank": 4}, {"size": None, "tensors": {"w": [1]}}])
def test_a_word_that_is_none_is_waited_for(tmp_path, changes):
    leave_word(SYSTEM, tmp_path, 2, WORD)
    (path,) = tmp_path.iterdir()
    assert read_word(path) == WORD
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    assert read_word(path) is None
