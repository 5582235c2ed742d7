"""`slurmtrain preflight --full` in an allocation: what is measured and told, what is recorded, and nodes that die meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurmtrain.errors import LaunchError
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.history import read_history
from slurmtrain.preflight.ledger import FullResult
from slurmtrain.preflight.rates import Kind
from tests.cli.desk import one_line_of
from tests.cli.preflight_desk import ahead, desk_in_job


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return desk_in_job(tmp_path, monkeypatch)


PAIR = Finding("n3", "pair", "fail", "0.2 GB/s, and 11 GB/s is the median of 5 others", "look at the cables", peer="n4")
FULL = FullResult(
    findings=(PAIR,),
    figures={"n1": {"matmul_tflops": 702.5, "pair_gb_s": 11.25}, "n3": {"matmul_tflops": 698.0}},
    untested=(("n1", "n2"),),
    samples={Kind("matmul_tflops", 8192, 1, "H100"): (702.5, 698.0)},
    notes=("storage is not measured",),
)


@pytest.fixture
def measured(monkeypatch):
    """`measured.result`: what comes of measuring; `measured.calls`: what was measured."""

    class Measured:
        result, calls = FULL, []

    def measure_on(launcher, base, request, baseline, clock, say, *, record):  # noqa: PLR0917 as the real one
        Measured.calls.append((base.nodes, base.output.name, len(baseline.rows), record))
        return Measured.result

    monkeypatch.setattr("slurmtrain.cli.preflight_ask.measure_on", measure_on)
    Measured.replaced = staticmethod(measure_on)
    Measured.calls.clear()
    return Measured


def test_what_was_measured_of_those_that_are_fit_is_told_with_what_was_not(desk, measured):
    desk.shell.changes["n2"] = ahead(60)
    result = desk.type("preflight", "--full")
    assert result.exit_code == 1
    assert measured.calls == [(("n1", "n3", "n4"), "check-%n.log", 0, False)]
    lines = result.stdout.splitlines()
    assert next(line for line in lines if line.startswith("n3")).split(maxsplit=2)[1:] == [
        "pair",
        "with n4: 0.2 GB/s, and 11 GB/s is the median of 5 others: look at the cables",
    ]
    assert ["n1", "702.5", "11.25"] in [line.split() for line in lines]
    assert "1 pair not tested for want of time (preflight.pairs_s): n1-n2" in lines
    assert "storage is not measured" in lines
    assert lines[-1].startswith("2 of 4 nodes may not start: n[2-3]; fit: n[1,4] (full, ")
    found = {one.node: one for one in read_history(desk.history)}
    assert (found["n1"].level, found["n1"].figures["pair_gb_s"]) == ("full", 11.25)
    assert [found[node].ok for node in ("n1", "n2", "n3", "n4")] == [True, False, False, True]


def test_where_no_check_that_is_asked_for_is_measured_no_probe_is_started(desk, measured):
    result = desk.type("preflight", "--full", "--only", "clock-skew")
    assert (result.exit_code, measured.calls) == (0, [])
    assert "4 nodes may start: n[1-4] (part, " in result.stdout


def ends_early(measured, monkeypatch, then):
    """The probes end too early, and then this happens; the next ones do not."""
    real = measured.replaced

    def first(*args, **more):
        monkeypatch.setattr("slurmtrain.cli.preflight_ask.measure_on", real)
        then()
        raise LaunchError("the probes of the preflight have ended too early")

    monkeypatch.setattr("slurmtrain.cli.preflight_ask.measure_on", first)


def test_a_node_that_dies_while_all_are_measured_is_found_and_the_rest_is_measured(desk, measured, monkeypatch):
    measured.result = FullResult()
    ends_early(measured, monkeypatch, lambda: desk.shell.hung.add("n3"))
    result = desk.type("preflight", "--full")
    assert result.exit_code == 1
    assert "1 of 4 nodes may not start: n3; fit: n[1-2,4] (full" in result.stdout
    assert "did not answer its check" in result.stdout
    assert [nodes for nodes, *_ in measured.calls] == [("n1", "n2", "n4")]


def test_a_node_that_slurm_gives_up_while_all_are_measured_is_told_with_its_word(desk, measured, monkeypatch):
    measured.result = FullResult()
    ends_early(measured, monkeypatch, lambda: desk.slurm.node("n3", "DOWN", "NOT_RESPONDING"))
    result = desk.type("preflight", "--full", "--json")
    told = {one["node"]: one for one in json.loads(result.stdout)["nodes"]}
    assert [told[node]["ok"] for node in ("n1", "n2", "n3", "n4")] == [True, True, False, True]
    assert "DOWN+NOT_RESPONDING" in told["n3"]["findings"][0]["said"]


def test_where_slurm_takes_the_job_away_while_all_are_measured_that_is_said(desk, measured, monkeypatch):
    ends_early(measured, monkeypatch, lambda: desk.slurm.change("33", state="NODE_FAIL"))
    result = desk.type("preflight", "--full")
    assert result.exit_code == 1
    assert "job 33 is NODE_FAIL by now" in result.stdout
    assert measured.calls == []


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT"])
def test_a_job_that_was_called_off_says_nothing_about_its_nodes(desk, measured, monkeypatch, state):
    ends_early(measured, monkeypatch, lambda: desk.slurm.change("33", state=state))
    result = desk.type("preflight", "--full")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"job 33 is {state} by now: nothing was found out" in result.stderr
    assert desk.files() == [], "neither a history nor a folder of answers"


def test_probes_that_end_early_on_nodes_that_all_answer_are_a_fault_with_the_launchers_words(desk, measured, monkeypatch):
    ends_early(measured, monkeypatch, lambda: None)
    result = desk.type("preflight", "--full")
    assert result.exit_code == 1
    assert "ended too early" in result.stderr
    assert measured.calls == []


def test_a_run_whose_job_says_full_is_measured(desk, measured):
    measured.result = FullResult()
    desk.job_file.write_text(f'preflight = "full"\n{desk.job_file.read_text()}')
    assert desk.type("preflight", desk.job_file).exit_code == 0
    assert len(measured.calls) == 1
    assert desk.type("preflight", desk.job_file, "--quick").exit_code == 0
    assert len(measured.calls) == 1


def test_a_baseline_is_recorded_of_nodes_that_are_all_fit_and_compared_with_from_then_on(desk, measured):
    result = desk.type("preflight", "--record")
    assert "nothing is recorded" in result.stdout
    assert not (desk.folder / "mysite.baseline.json").exists()
    measured.result = replace(FULL, findings=())
    result = desk.type("preflight", "--record")
    assert result.exit_code == 0, result.output
    assert f"recorded: 1 row in {desk.folder}/mysite.baseline.json" in result.stdout
    (row,) = json.loads((desk.folder / "mysite.baseline.json").read_bytes())["rows"]
    assert (row["metric"], row["value"], row["count"]) == ("matmul_tflops", 700.25, 2)
    desk.type("preflight", "--full")
    assert measured.calls[-1][2:] == (1, False)
    desk.type("preflight", "--record")
    assert measured.calls[-1][2:] == (0, True), "what is recorded is not held to what was recorded before"


def test_a_damaged_baseline_is_said_before_anything_is_measured(desk, measured):
    (desk.folder / "mysite.baseline.json").write_text("{")
    assert "take it away, and record it again" in one_line_of(desk.type("preflight", "--record"))
    assert measured.calls == []
