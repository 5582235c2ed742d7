"""`slurmtrain preflight --here`: one node by itself, its cache, and `preflight history`."""

from __future__ import annotations

import json

import pytest

from slurmtrain.preflight import listing, registry
from slurmtrain.preflight.checks import quota_left, shared_folder
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.history import Entry, append, read_history
from slurmtrain.preflight.machine import CannotTellError
from slurmtrain.preflight.parts import Check, Source
from tests.cli.desk import one_line_of
from tests.cli.preflight_desk import PreflightDesk


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """`desk.facts`: what the one source of this node sees; None: it cannot look."""
    made = PreflightDesk(tmp_path)

    def look(machine, request):
        if made.facts is None:
            raise CannotTellError("no such program: fanctl", "install it")
        return {"rpm": made.facts}

    def judge(facts, request):
        from slurmtrain.preflight.finding import Trouble

        if facts["rpm"] < 1000:
            yield Trouble("fail", f"{facts['rpm']} rpm", "replace it", "fan 1")

    for module in (registry, listing):
        monkeypatch.setattr(module, "all_checks", lambda: (Check("fans", "fans", "fans turn", judge),))
    monkeypatch.setattr(registry, "all_sources", lambda: (Source("fans", look, late="reboot"),))
    made.facts = 4000
    made.env["SLURMD_NODENAME"] = "n7"
    return made


def here(desk, *words):
    return desk.type("preflight", "--here", *words)


def test_this_node_without_slurm_and_without_a_launcher(desk):
    desk.slurm.down = True
    result = here(desk)
    assert (result.exit_code, result.stdout.splitlines()[-1].partition(" (")[0]) == (0, "1 node may start: n7"), result.output
    assert (desk.slurm.questions, desk.shell.asked) == ([], [])
    (one,) = read_history(desk.history)
    assert (one.node, one.ok, one.level, one.by) == ("n7", True, "quick", "here")


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [(4000, 0, "OK - 1 node fit"), (12, 2, "CRITICAL - n7: fans: fan 1: 12 rpm: replace it"), (None, 3, "UNKNOWN - n7: fans: no such")],
)
def test_for_nagios(desk, facts, code, words):
    desk.facts = facts
    result = here(desk, "--nagios")
    assert (result.exit_code, len(result.stdout.splitlines())) == (code, 1)
    assert result.stdout.startswith(f"PREFLIGHT {words}")


def test_a_node_that_was_fit_is_not_looked_at_again_for_a_while(desk):
    assert here(desk).exit_code == 0
    desk.facts = 12
    desk.clock.advance(300)
    assert "1 node fit, looked at 300 s ago" in here(desk, "--nagios").stdout
    assert len(list(read_history(desk.history))) == 1, "what was not looked at is not written down"
    assert here(desk, "--fresh").exit_code == 1
    assert here(desk).exit_code == 1, "the fault ends what was known before"
    desk.facts = 4000
    assert here(desk).exit_code == 0
    desk.facts = 12
    desk.clock.advance(601)
    assert here(desk).exit_code == 1


def test_a_fault_that_an_attempt_has_found_ends_it_too(desk):
    assert here(desk).exit_code == 0
    desk.facts = 12
    desk.clock.advance(10)
    hung = Finding("n7", "node", "unknown", "no answer")
    append(desk.history, desk.disk, [Entry(desk.clock.time(), "n7", "quick", ok=False, by="attempt", site="mysite", findings=(hung,))])
    assert here(desk).exit_code == 1


def test_what_another_site_says_of_a_node_of_that_name_counts_nothing(desk):
    append(desk.history, desk.disk, [Entry(desk.clock.time(), "n7", "quick", ok=True, site="elsewhere")])
    desk.facts = 12
    assert here(desk).exit_code == 1


def test_a_history_that_cannot_be_written_is_told_and_keeps_nobody_out(desk):
    desk.disk.faults["append"] = None
    result = here(desk)
    assert result.exit_code == 0
    assert "the history cannot be written" in result.stderr


def test_a_root_that_cannot_be_told_is_no_reason_to_fail(desk):
    """As of slurmd: no USER, no HOME."""
    del desk.env["SLURMTRAIN_ROOT"]
    desk.site('[paths]\nroot = "/lustre/$USER/runs"\n')
    assert here(desk, "--nagios").exit_code == 0


def test_without_a_site_slurm_is_not_asked_for_its_name(desk):
    del desk.env["SLURMTRAIN_SITE"]
    assert "no site is chosen" in one_line_of(here(desk))
    assert desk.slurm.questions == []


def test_what_one_node_cannot_tell_is_refused(desk):
    for name in ("mpi-world", "matmul"):
        assert f"{name} takes more than one node" in one_line_of(here(desk, "--only", name))


@pytest.mark.parametrize("words", [("--full",), ("--nodes", "n1"), ("--record",)])
def test_what_needs_other_nodes_is_refused(desk, words):
    assert "--here looks at this node alone" in one_line_of(here(desk, *words))


def test_history_shows_what_was_found_newest_last(desk):
    here(desk)
    desk.facts = 12
    desk.clock.advance(60)
    here(desk, "--fresh")
    desk.env["SLURMD_NODENAME"] = "n8"
    here(desk)
    shown = desk.type("preflight", "history").stdout.splitlines()
    assert [line.split()[2] for line in shown[1:]] == ["n7", "n7", "n8"]
    assert shown[2].endswith("fans: fan 1: 12 rpm: replace it")
    assert shown[1] == shown[1].rstrip(), "no blanks up to the width of the longest"
    told = [json.loads(line) for line in desk.type("preflight", "history", "n7", "--json").stdout.splitlines()]
    assert [one["ok"] for one in told] == [True, False]
    desk.clock.advance(7200)
    assert "no preflight of n7" in desk.type("preflight", "history", "n7", "--since", "1h").stderr
    assert "--since" in one_line_of(desk.type("preflight", "history", "--since", "yesterday"))
    assert "slurmtrain preflight history" in desk.type("preflight", "history", "--help").stdout


def test_what_is_asked_for_alone_and_cannot_be_looked_at_here_is_refused(desk, monkeypatch):
    monkeypatch.setattr(listing, "all_checks", lambda: (shared_folder.CHECK, quota_left.CHECK))
    for name in ("shared-folder", "quota"):
        result = here(desk, "--only", name)
        assert result.exit_code == 2
        assert f"--only: {name} is not made" in one_line_of(result)
    assert " no " in here(desk, "--list").stdout


def test_a_file_for_prometheus_that_cannot_be_written_takes_the_verdict_away_from_nobody(desk, tmp_path):
    desk.facts = 12
    result = here(desk, "--nagios", "--prometheus", tmp_path / "gone" / "preflight.prom")
    assert result.exit_code == 2
    assert "CRITICAL - n7: fans" in result.stdout
    assert "make its folder" in result.stderr


def test_a_file_that_the_collector_would_not_read_is_refused(desk, tmp_path):
    result = here(desk, "--prometheus", tmp_path / "preflight.txt")
    assert result.exit_code == 2
    assert "ends in .prom" in one_line_of(result)


def test_for_nagios_what_nobody_hears_is_unknown_too(desk, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurmtrain.cli.preflight.click.echo", full)
    assert here(desk, "--nagios").exit_code == 3
