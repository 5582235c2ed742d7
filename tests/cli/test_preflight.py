"""`slurmtrain preflight` in an allocation: who may start, what is told, exit codes, what is kept, and who is left alone."""

from __future__ import annotations

import json
import re

import pytest

from slurmtrain.config.stored import read_job
from slurmtrain.preflight.history import read_history
from tests.cli.desk import one_line_of
from tests.cli.preflight_desk import ahead, desk_in_job


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return desk_in_job(tmp_path, monkeypatch)


def test_all_nodes_may_start_and_nothing_is_left_but_the_history(desk):
    result = desk.type("preflight")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("4 nodes may start: n[1-4] (quick, ")
    every = ("n1", "n2", "n3", "n4")
    assert desk.shell.asked == [("slurmtrain.preflight.node", every), ("slurmtrain.runtime.mpi_size", every)]
    assert desk.files() == ["preflight.jsonl"]
    found = list(read_history(desk.history))
    assert [(one.node, one.ok, one.level, one.by, one.job_id) for one in found] == [(n, True, "quick", "command", "33") for n in every]
    assert [method for method, _ in desk.disk.calls].count("append") == 1


def test_a_node_that_may_not_is_one_line_with_the_remedy_and_what_it_said_is_kept(desk):
    desk.shell.changes["n2"] = ahead(60)
    result = desk.type("preflight")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("n2")]
    assert line.split()[:2] == ["n2", "clock-skew"]
    assert "the clock is 60.0 s ahead that of the node that asks: start chronyd" in line
    assert "1 of 4 nodes may not start: n2; fit: n[1,3-4]" in result.stdout
    (kept,) = desk.kept()
    assert str(kept) in result.stderr
    assert (kept / "nodes" / "n2.json").exists()
    assert desk.shell.asked[-1] == ("slurmtrain.runtime.mpi_size", ("n1", "n3", "n4")), "MPI is asked of those that are fit"
    assert [one.ok for one in read_history(desk.history)] == [True, False, True, True]


def test_nodes_with_the_same_trouble_share_a_line(desk):
    desk.shell.size = 1
    assert [line.split()[0] for line in desk.type("preflight").stdout.splitlines() if "mpi-world" in line] == ["n[1-4]"]


def test_what_is_tolerated_is_a_warning_apart_and_all_may_start(desk):
    desk.site('[preflight]\ntolerate = ["clock-skew"]\n')
    desk.shell.changes["n2"] = ahead(60)
    result = desk.type("preflight")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[0] == "WARNING"
    assert lines[1].startswith("n2")
    assert desk.kept() == []


def test_a_hung_node_is_named_after_one_time_out(desk):
    desk.shell.hung = {"n3"}
    desk.site("[preflight]\ntimeout_s = 5\n")
    began = desk.clock.monotonic()
    result = desk.type("preflight")
    assert result.exit_code == 1
    assert "1 of 4 nodes may not start: n3" in result.stdout
    assert "did not answer its check" in result.stdout
    assert desk.clock.monotonic() - began < 10 + 5 + 10


def test_a_node_that_an_administrator_has_drained_is_told_and_left_alone(desk):
    desk.slurm.node("n2", "ALLOCATED", "DRAIN", reason="fan broken [ada@1700000000]")
    desk.slurm.node("n4", "DOWN", "NOT_RESPONDING")
    result = desk.type("preflight", "--json")
    assert result.exit_code == 1
    told = {one["node"]: one for one in json.loads(result.stdout)["nodes"]}
    assert [told[node]["ok"] for node in ("n1", "n2", "n3", "n4")] == [True, False, True, False]
    said = told["n2"]["findings"][0]["said"]
    assert re.fullmatch(r"ALLOCATED\+DRAIN \(fan broken, by ada at 2023-11-1[45] \d\d:\d\d:20\): not looked at", said), said
    assert all(nodes == ("n1", "n3") for _, nodes in desk.shell.asked)
    assert set(desk.slurm.questions) <= {"job", "nodes", "steps", "config_value"}, "nothing is changed"
    assert desk.slurm.cancelled == []


def test_where_slurm_takes_the_job_away_the_others_are_not_to_blame(desk):
    desk.shell.hung = {"n3"}
    desk.clock.at(8.0, lambda: desk.slurm.change("33", state="NODE_FAIL"))
    result = desk.type("preflight")
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("n[1-2,4]"))
    assert "job 33 is NODE_FAIL by now" in line
    assert "salloc --no-kill" in line
    assert {module for module, _ in desk.shell.asked} == {"slurmtrain.preflight.node"}


def test_where_slurm_does_not_tell_states_all_are_asked(desk, monkeypatch):
    from slurmtrain.errors import SlurmUnavailableError

    def nodes(names):
        raise SlurmUnavailableError("no answer")

    monkeypatch.setattr(desk.slurm, "nodes", nodes)
    assert desk.type("preflight").exit_code == 0


def test_a_name_that_no_check_has_is_said_and_keeps_nobody_out(desk):
    desk.site('[preflight]\nskip = ["clok-skew"]\ntolerate = ["node", "clock", "pair"]\n')
    result = desk.type("preflight")
    assert result.exit_code == 0
    assert "preflight.skip: no check 'clok-skew': see --list" in result.stderr
    assert "preflight.tolerate" not in result.stderr


def test_some_nodes_alone(desk):
    assert desk.type("preflight", "--nodes", "n[2-3]").exit_code == 0
    assert {nodes for _, nodes in desk.shell.asked} == {("n2", "n3")}
    assert "n9 is not in the allocation, which has n[1-4]" in one_line_of(desk.type("preflight", "-w", "n1,n9"))
    assert "is not a host list" in one_line_of(desk.type("preflight", "-w", "@all"))
    assert "names no node" in one_line_of(desk.type("preflight", "-w", ""))


def test_some_checks_alone_say_of_nobody_that_he_is_fit(desk):
    assert desk.type("preflight", "--only", "clock-skew").exit_code == 0
    assert [module for module, _ in desk.shell.asked] == ["slurmtrain.preflight.node"]
    assert {one.level for one in read_history(desk.history)} == {"part"}
    assert "no check 'clock-skw'; did you mean 'clock-skew'?" in one_line_of(desk.type("preflight", "--only", "clock-skw"))
    assert "matmul is measured" in one_line_of(desk.type("preflight", "--only", "matmul", "--quick"))
    assert "transport is not made: not at this site" in one_line_of(desk.type("preflight", "--only", "transport"))
    desk.type("preflight", "--only", "mpi-world")
    assert desk.shell.requests[-1].only == ("mpi-world",)
    assert desk.shell.asked[-1][0] == "slurmtrain.runtime.mpi_size"


def test_mpis_world_of_another_size_keeps_all_out(desk):
    desk.shell.size = 1
    result = desk.type("preflight")
    assert result.exit_code == 1
    assert "MPI sees a world of 1, and 4 processes were started: the site says slurm.mpi = 'pmi2'" in result.stdout
    desk.site('[preflight]\nskip = ["mpi-world"]\n')
    assert desk.type("preflight").exit_code == 0


def test_outside_of_an_allocation_it_says_what_to_type(desk):
    del desk.env["SLURM_JOB_ID"]
    line = one_line_of(desk.type("preflight"))
    assert "salloc -N 2 slurmtrain preflight" in line
    assert "--here" in line
    assert desk.files() == []


NAGIOS = [
    ({}, "", 0, "OK - 4 nodes fit"),
    ({"n2": 60.0}, "", 2, "CRITICAL - n2: clock-skew: the clock is 60.0 s ahead"),
    ({"n2": 60.0}, '[preflight]\ntolerate = ["clock-skew"]\n', 1, "WARNING - n2: clock-skew"),
]


@pytest.mark.parametrize(("skews", "site", "code", "words"), NAGIOS)
def test_nagios_line_and_code(desk, skews, site, code, words):
    desk.site(site)
    desk.shell.changes = {node: ahead(by_s) for node, by_s in skews.items()}
    result = desk.type("preflight", "--nagios")
    assert result.exit_code == code
    assert result.stdout.startswith(f"PREFLIGHT {words}")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""


WRONG = [
    (("--bogus",), "No such option"),
    (("--only", "nothing-like-it"), "no check 'nothing-like-it'"),
    (("--site", "nowhere"), "no site 'nowhere'"),
    (("no-such-run",), "no run 'no-such-run'"),
    (("--json",), "give one of them"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_for_nagios_a_mistake_is_unknown_and_for_people_2(desk, words, said):
    result = desk.type("preflight", "--nagios", *words)
    assert (result.exit_code, len(result.stdout.splitlines())) == (3, 1)
    assert result.stdout.startswith("PREFLIGHT UNKNOWN - ")
    assert said in result.stdout
    if words != ("--json",):
        assert said in one_line_of(desk.type("preflight", *words))


def test_for_nagios_also_a_fault_of_ours_is_unknown(desk, monkeypatch):
    monkeypatch.setattr("slurmtrain.cli.preflight_ask.report", lambda *_: 1 / 0)
    result = desk.type("preflight", "--nagios")
    assert result.exit_code == 3
    assert "ZeroDivisionError" in result.stdout
    assert "Traceback" in result.stderr


def test_prometheus_file_is_written_as_a_whole_beside_the_table(desk, tmp_path):
    desk.shell.changes["n2"] = ahead(60)
    file = tmp_path / "preflight.prom"
    assert desk.type("preflight", "--prometheus", file).exit_code == 1
    assert ("write", file) in desk.disk.calls
    text = file.read_text()
    assert 'slurmtrain_preflight_ok{node="n2",check="clock-skew"} 0.0' in text
    assert 'slurmtrain_preflight_ok{node="n1",check="clock-skew"} 1.0' in text
    assert 'slurmtrain_preflight_ok{node="n1",check="mpi-world"} 1.0' in text


def test_a_job_file_says_what_its_run_needs(desk):
    desk.job_file.write_text(desk.job_file.read_text() + "gpus_per_node = 2\n")
    assert desk.type("preflight", desk.job_file).exit_code == 0
    assert {one.gpus_per_node for one in desk.shell.requests} == {2}
    assert desk.files() == ["preflight.jsonl"], "no run is made"


def test_a_run_says_what_it_needs_and_where_it_writes(desk):
    assert desk.submit("--preflight", "full").exit_code == 0
    assert read_job(desk.run().job_json).preflight == "full"
    assert desk.type("preflight", "job", "--quick").exit_code == 0
    request = desk.shell.requests[-1]
    assert request.code == str(desk.run().code)
    assert request.shared == (str(desk.run().checkpoints), str(desk.run().events))
    assert {one.run for one in read_history(desk.history)} == {"job"}


@pytest.mark.parametrize("word", ["off", "quick", "full"])
def test_submit_and_run_take_what_is_looked_at_before_each_start(desk, word):
    assert desk.submit("--preflight", word).exit_code == 0
    assert read_job(desk.run().job_json).preflight == word
    assert f"--preflight={word}" in desk.run().script.read_text()


def test_submit_knows_no_other_preflight(desk):
    assert "'thorough' is not one of" in one_line_of(desk.submit("--preflight", "thorough"))


def test_the_list_says_which_checks_are_made_here(desk):
    desk.site('[preflight]\nskip = ["clock-skew"]\n')
    lines = {line.split()[0]: line for line in desk.type("preflight", "--list").stdout.splitlines()}
    assert lines["clock-skew"].split()[1:3] == ["quick", "no"]
    assert "preflight.skip" in lines["clock-skew"]
    assert lines["mpi-world"].split()[1:3] == ["quick", "yes"]
    assert lines["transport"].split()[1:3] == ["full", "no"]
    told = json.loads(desk.type("preflight", "--list", "--json").stdout)["checks"]
    assert {one["name"] for one in told} == set(lines) - {"CHECK"}
    assert desk.shell.asked == []
