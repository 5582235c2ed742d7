"""`slurmtrain site faults`: nodes by faults, the rate and its interval, and what runs plan with."""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.stored import read_site
from slurmtrain.telemetry.faultlog import LoggedEnd, append
from tests.cli.desk import Desk, one_line_of
from tests.config.bad_files import GOOD_SITE

DAY = 86_400.0


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    (tmp_path / "mysite.toml").write_text(f'{GOOD_SITE}\n[reliability]\nfault_log = "{tmp_path}/faults.jsonl"\n')
    return made


def logged(desk, *, days_ago=1.0, bad="", cause="node_failure", site="mysite", nodes="n[1-10]", hours=24.0):
    t = desk.clock.time() - days_ago * DAY
    append(desk.folder / "faults.jsonl", LoggedEnd(t, site, "ada", "7", 1, cause, nodes, hours, bad).to_line())


def test_nodes_by_faults_per_day_with_the_rate(desk):
    for days_ago in (1, 2, 3):
        logged(desk, days_ago=days_ago, bad="n3")
    logged(desk, bad="n7", cause="hang")
    logged(desk, days_ago=40, bad="n1")
    logged(desk, bad="n2", site="elsewhere")
    logged(desk, cause="finished")
    told = json.loads(desk.type("site", "faults", "--since", "30d", "--json").stdout)
    assert (told["site"], told["faults"], told["since_s"]) == ("mysite", 4, 30 * DAY)
    assert told["node_days"] == pytest.approx(50)
    assert told["failures_per_node_day"] == pytest.approx(4 / 50)
    assert told["interval_95"] == pytest.approx([1.0899 / 50, 10.2416 / 50], abs=1e-5)
    assert [(one["node"], one["faults"], one["per_day"], one["causes"]) for one in told["nodes"][:2]] == [
        ("n3", 3, 0.1, {"node_failure": 3}),
        ("n7", 1, pytest.approx(1 / 30), {"hang": 1}),
    ]
    shown = desk.type("site", "faults").stdout.splitlines()
    assert shown[2].split()[:4] == ["n3", "3", "0.1", "5.0"]
    assert (
        "4 faults in 50.0 node-days: 80 in 1,000 node-days (95 %: 21.8 to 205); runs go by reliability.failures_per_node_day" in shown[-1]
    )


def test_a_site_without_a_log_and_a_log_without_a_line(desk):
    assert "0 faults in 0.0 node-days" in desk.type("site", "faults").stdout
    (desk.folder / "mysite.toml").write_text(GOOD_SITE)
    assert "keeps no fault log: set reliability.fault_log" in one_line_of(desk.type("site", "faults"))
    assert "--since" in one_line_of(desk.type("site", "faults", "--since", "yesterday"))


def test_a_run_plans_with_what_the_log_has_measured(desk):
    def said(name):
        return read_site(desk.run(name).site_json).reliability.failures_per_node_day

    for days_ago in range(1, 5):
        logged(desk, days_ago=days_ago, bad="n3")
    assert desk.submit("-J", "job").exit_code == 0
    assert said("job") == 0.0065, "four faults are too few"
    logged(desk, bad="n3")
    result = desk.submit("-J", "next", "--set", "checkpoint.interval=auto")
    assert result.exit_code == 0, result.output
    assert said("next") == 0.1
    assert "0.1 failures a node and day: 5 in 50 node-days of" in result.output
    assert said("job") == 0.0065


BAD = [
    ('fault_log = "faults.jsonl"', "reliability.fault_log = 'faults.jsonl': must be an absolute path"),
    ('fault_command = "report \'{node}"', "cannot be split into words: No closing quotation"),
    ('fault_command = "report {nodes}"', "reliability.fault_command = 'report {nodes}': has no {nodes}: there are node, cause"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_a_log_or_command_that_cannot_be_used_is_refused(desk, line, words):
    (desk.folder / "mysite.toml").write_text(f"{GOOD_SITE}\n[reliability]\n{line}\n")
    assert words in one_line_of(desk.type("site", "show", "mysite"))
