"""A silent corruption, attempt after attempt in one job: which nodes the suspect steps are run again on, and who is avoided when."""

from __future__ import annotations

import json

from slurmtrain.resilience.examination import Sight, Suspect, agreed, differed, read_examination
from slurmtrain.telemetry.exitfile import ExitRecord
from tests.resilience.stage import Stage

WORDS = "SilentCorruptionError: after step 4 replicas differ"


def corrupt(stage: Stage, rank: int) -> None:
    """What the ranks leave when one of them is found odd: word of what comes next, and records that say why they ended."""
    record = stage.recorded(stage.attempt)
    suspect = Suspect(rank, record.nodes[rank // stage.gpus], rank % stage.gpus)
    sight = Sight(stage.attempt, 4, 2, (suspect,), True, record.nodes, record.spares)
    exam = differed(read_examination(stage.run.examination_json), sight)
    stage.run.examination_json.write_bytes(exam.to_json())
    for other in range(stage.world):
        node = record.nodes[other // stage.gpus]
        one = ExitRecord(other, "error", 1, 4, WORDS, node, "silent_corruption")
        stage.run.attempt(stage.attempt).exit_file(other).write_bytes(one.to_json())
    stage.leave()


def close(stage: Stage) -> None:
    """The ranks have run the steps again, and all were equal."""
    stage.run.examination_json.write_bytes(agreed(read_examination(stage.run.examination_json)).to_json())


def excluded(stage: Stage) -> list[str]:
    return list(json.loads(stage.run.exclude_json.read_bytes())["nodes"]) if stage.run.exclude_json.exists() else []


def test_again_on_the_same_nodes_then_with_the_spare(tmp_path):
    stage = Stage(tmp_path, nodes=2, gpus=2, spares=1)
    for attempt in (1, 2):
        stage.at(1.0, lambda: stage.make_step(1), attempt)
        stage.at(2.0, lambda: corrupt(stage, rank=1), attempt)
    stage.at(0.5, lambda: close(stage), 3)
    stage.train(until=6, attempt=3, save_every=3)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, summary.attempt) == (0, "finished", 3)
    records = [stage.recorded(number) for number in (1, 2, 3)]
    assert [record.nodes for record in records] == [("n1", "n2"), ("n1", "n2"), ("n3", "n2")]
    assert records[2].spares == ("n1",)
    assert [record.outcome.category for record in records] == ["silent_corruption", "silent_corruption", "finished"]
    assert [record.outcome.node for record in records[:2]] == ["", ""], "nobody is to blame yet"
    assert excluded(stage) == [], "the ranks write who is"
    assert read_examination(stage.run.examination_json).node == "n1"
    said = "\n".join(stage.lines)
    assert "silent corruption: the same steps again on the same nodes" in said
    assert "silent corruption: n1 changes places" in said


def test_the_node_that_it_goes_with_is_to_blame(tmp_path):
    stage = Stage(tmp_path, nodes=4, gpus=1)
    for attempt, rank in ((1, 2), (2, 2), (3, 0)):
        stage.at(1.0, lambda: stage.make_step(1), attempt)
        stage.at(2.0, lambda rank=rank: corrupt(stage, rank), attempt)
    stage.supervise()
    places = [stage.recorded(number).nodes for number in (1, 2, 3)]
    assert places == [("n1", "n2", "n3", "n4"), ("n1", "n2", "n3", "n4"), ("n3", "n2", "n1", "n4")]
    assert [stage.recorded(number).outcome.node for number in (1, 2, 3)] == ["", "", "n3"]
    assert excluded(stage) == ["n3"]


def test_an_examination_is_not_cut_short_because_it_makes_no_checkpoint(tmp_path):
    stage = Stage(tmp_path, nodes=2, gpus=1, spares=1)
    for attempt in (1, 2, 3):
        stage.at(1.0, lambda: stage.make_step(1), attempt)
        stage.at(2.0, lambda: corrupt(stage, rank=1), attempt)
    stage.train(until=6, attempt=4, save_every=3)
    summary = stage.supervise()
    assert (summary.outcome, summary.attempt) == ("finished", 4)
    assert [stage.recorded(number).nodes for number in (1, 2, 3)] == [("n1", "n2"), ("n1", "n2"), ("n1", "n3")]
    assert read_examination(stage.run.examination_json).finding == "software"
