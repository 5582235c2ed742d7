"""What came of a preflight in every form: Nagios' line and codes, Prometheus' text, JSON, and which checks passed."""

from __future__ import annotations

import json
import re

import pytest

from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.asking import CheckResult
from slurmtrain.preflight.finding import Finding
from slurmtrain.preflight.judge import NodeFault
from slurmtrain.preflight.listing import MEASURED, OF_ALL, listing, made_at, names
from slurmtrain.preflight.nagios import plugin_line, trouble_line
from slurmtrain.preflight.prometheus import exposition
from slurmtrain.preflight.registry import all_checks
from slurmtrain.preflight.report import Report, findings_of, passed
from slurmtrain.preflight.request import Request

FAIL = Finding("n2", "gpu-ecc", "fail", "2 uncorrectable errors", "have it replaced", "GPU 3")
WARN = Finding("n1", "gpu-temperature", "warn", "88 C | hot", "look at its fans")
BLIND = Finding("n3", "gpus", "unknown", "nvidia-smi: no answer in time", "have it rebooted")
NODES = ("n1", "n2", "n3")


def report(*findings: Finding, **more) -> Report:
    return Report(1000.0, "alps", "quick", NODES, findings, seconds=4.256, **more)


def answer(node: str) -> NodeAnswer:
    return NodeAnswer(node, True, (), "3.11.7", "0.1.0", 1, 1)


PLUGIN = [
    ((), 0, "OK - 3 nodes fit | nodes=3;;;0 fit=3;;;0;3 warnings=0;;;0 seconds=4.26s;;;0"),
    ((WARN,), 1, "WARNING - n1: gpu-temperature: 88 C / hot: look at its fans | nodes=3;;;0 fit=3;;;0;3 warnings=1;;;0"),
    ((BLIND, WARN), 3, "UNKNOWN - n3: gpus: nvidia-smi: no answer in time: have it rebooted (and 1 more) | nodes=3;;;0 fit=2;;;0;3"),
    (
        (BLIND, WARN, FAIL),
        2,
        "CRITICAL - n2: gpu-ecc: GPU 3: 2 uncorrectable errors: have it replaced (and 2 more) | nodes=3;;;0 fit=1;;;0;3",
    ),
]


@pytest.mark.parametrize(("findings", "code", "words"), PLUGIN)
def test_a_plugins_line_and_code(findings, code, words):
    got, line = plugin_line(report(*findings))
    assert got == code
    assert line.startswith(f"PREFLIGHT {words}")
    assert line.count("|") == 1, "the bar stands before the figures alone"
    assert "\n" not in line


def test_a_plugins_line_of_what_was_not_looked_at_again_and_of_what_could_not_be_looked_at():
    assert "3 nodes fit, looked at 132 s ago" in plugin_line(report(cached=dict.fromkeys(NODES, 132.0)))[1]
    assert trouble_line("--only: no check 'x|y'\nsee --list") == "PREFLIGHT UNKNOWN - --only: no check 'x/y' see --list"


SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)')
"""A line of the exposition format, as prometheus.io describes it."""


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    assert text.endswith("\n")
    found, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            form = SAMPLE.fullmatch(line)
            assert form, line
            labels = re.findall(r'(\w+)="((?:[^"\\\n]|\\[\\n"])*)"', form[2])
            key = (form[1], tuple(sorted(labels)))
            assert form[1] in typed
            assert key not in found, "no sample twice"
            found[key] = float(form[3])
    return found


def test_prometheus_text_can_be_read_back():
    made = report(FAIL, passed={"n1": {"gpu-ecc": True}, "n2": {"gpu-ecc": False}}, figures={"n1": {"matmul_tflops": 702.5}})
    found = samples(exposition(made))
    assert found["slurmtrain_preflight_ok", (("check", "gpu-ecc"), ("node", "n1"))] == 1
    assert found["slurmtrain_preflight_ok", (("check", "gpu-ecc"), ("node", "n2"))] == 0
    assert found["slurmtrain_preflight_figure", (("figure", "matmul_tflops"), ("node", "n1"))] == 702.5
    assert [found["slurmtrain_preflight_node_ok", (("node", node),)] for node in NODES] == [1, 0, 1]
    assert found["slurmtrain_preflight_time_seconds", (("level", "quick"), ("site", "alps"))] == 1000.0


def test_labels_are_escaped():
    odd = Report(1.0, 'a"b\\c\nd', "quick", ("n1",))
    assert 'site="a\\"b\\\\c\\nd"' in exposition(odd)
    assert samples(exposition(odd))


def test_json_tells_all_of_it():
    told = json.loads(json.dumps(report(BLIND, FAIL, WARN, untested=(("n1", "n3"),), folder="/runs/.preflight/x").to_json()))
    assert (told["ok"], told["level"], told["untested"], told["folder"]) == (False, "quick", [["n1", "n3"]], "/runs/.preflight/x")
    assert [(one["node"], one["ok"]) for one in told["nodes"]] == [("n1", True), ("n2", False), ("n3", False)]
    assert told["nodes"][1]["findings"] == [
        {"check": "gpu-ecc", "grade": "fail", "said": "2 uncorrectable errors", "remedy": "have it replaced", "item": "GPU 3"}
    ]


def test_what_every_start_needs_and_what_health_says_stand_side_by_side_once():
    result = CheckResult(
        faults=(NodeFault("n1", "cannot write into /x: Read-only file system"), NodeFault("n2", str(FAIL)), NodeFault("n3", "no answer")),
        answers={"n1": answer("n1"), "n2": answer("n2")},
        seconds=1.0,
        late={"n4": "it did not answer its check while others did"},
        findings=(FAIL,),
    )
    found = [(one.node, one.check, one.grade) for one in findings_of(result)]
    assert found == [("n1", "node", "fail"), ("n3", "node", "unknown"), ("n4", "node", "unknown"), ("n2", "gpu-ecc", "fail")]


def test_a_check_whose_source_could_not_look_has_not_passed():
    site = SiteConfig.model_validate({"name": "here", "device": "cpu", "node": {"gpus": 1}})
    request = Request(1.0, "", "", "", (), site, health=True, only=("clock-skew",))
    blind = Finding("n2", "clock", "unknown", "no answer in time", "reboot")
    made = passed(("n1", "n2", "n3"), {"n1": answer("n1"), "n2": answer("n2")}, [blind], request)
    assert made == {"n1": {"node": True, "clock-skew": True}, "n2": {"node": True, "clock-skew": False}, "n3": {"node": True}}
    silent = passed(("n3",), {}, [Finding("n3", "node", "unknown", "no answer")], request)
    assert silent == {"n3": {"node": False}}


def test_every_check_is_listed_and_why_it_is_not_made():
    site = {"name": "here", "device": "cpu", "node": {"gpus": 1}, "preflight": {"skip": ["clock-skew"], "tolerate": ["matmul"]}}
    request = Request(1.0, "", "", "", ("/runs",), SiteConfig.model_validate(site), health=True)
    found = {one.name: one for one in listing(request)}
    assert set(found) == set(names()) == {check.name for check in all_checks()} | set(OF_ALL) | set(MEASURED)
    assert (found["clock-skew"].made, found["clock-skew"].why) == (False, "left out by preflight.skip")
    assert (found["matmul"].made, found["matmul"].why) == (True, "a warning at most: preflight.tolerate")
    assert (found["transport"].made, found["nic-rate"].made, found["mpi-world"].made) == (False, False, True)
    assert all(one.about and len(one.about) <= 120 for one in found.values())


@pytest.mark.parametrize(
    ("changes", "not_made"),
    [
        ({}, set()),
        ({"preflight": {"pairs_s": 0}}, {"pair"}),
        ({"fabric": {"kind": "infiniband"}}, {"nic-rate"}),
        ({"fabric": {"kind": "slingshot", "nic_gbps": 200}}, {"nic-rate", "transport"}),
        ({"device": "cpu"}, {"transport"}),
    ],
)
def test_what_a_full_preflight_makes_at_a_site_is_what_is_listed_as_made(changes, not_made):
    site = {"name": "here", "device": "cuda", "node": {"gpus": 1}, "fabric": {"kind": "infiniband", "nic_gbps": 400}, **changes}
    request = Request(1.0, "", "", "", ("/runs",), SiteConfig.model_validate(site), health=True)
    assert set(MEASURED) - set(made_at(request)) == not_made
    assert {one.name for one in listing(request) if one.part == "full" and not one.made} == not_made
