"""Which nodes may not take part: table rows, each with the node's name and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.judge import Expected, judge

GOOD = NodeAnswer("n1", True, (), "3.11.7", "0.1.0", 24, 96 << 30, "word", {"l": -1, "n": 1 << 20})
EXPECTED = Expected(("n1", "n2"), "word", "0.1.0", cpus=24, memory_bytes=95 << 30, ulimits={"l": "unlimited", "n": "65536"})


def faults(**changes: object) -> list[str]:
    """n1 is good, n2 differs."""
    return [str(fault) for fault in judge({"n1": GOOD, "n2": replace(GOOD, node="n2", **changes)}, EXPECTED)]


def test_good_nodes_have_no_fault():
    assert faults() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nonce": "other"}, "another run folder"),
        ({"version": "0.0.9"}, "slurmtrain 0.0.9 there, 0.1.0 on the batch host"),
        ({"cpus": 23}, "23 CPUs for the job there, 24 needed"),
        ({"memory_bytes": 1 << 30}, "1.0 GiB of memory for the job there, 95.0 GiB needed"),
        ({"limits": {"l": 64, "n": 1 << 20}}, "ulimit -l is 64 there, unlimited wanted"),
        ({"limits": {"l": -1, "n": 1024}}, "ulimit -n is 1024 there, 65536 wanted"),
        ({"problems": ("cannot write into /x: Read-only file system",)}, "Read-only"),
    ],
)
def test_one_fault_one_line(changes, words):
    found = faults(**changes)
    assert len(found) == 1
    assert found[0].startswith("n2: ")
    assert words in found[0]


def test_another_python_is_told_against_that_of_most():
    answers = {n: replace(GOOD, node=n, python="3.12.1" if n == "n3" else "3.11.7") for n in ("n1", "n2", "n3")}
    found = judge(answers, replace(EXPECTED, nodes=("n1", "n2", "n3")))
    assert [str(f) for f in found] == [
        "n3: python 3.12.1 there, 3.11.7 on the other nodes: name one interpreter by `python` in the job or the site"
    ]


def test_a_silent_node_is_named_with_what_is_known_of_it():
    found = judge({"n1": GOOD}, EXPECTED, silent={"n2": "srun: error: n2: task 1: Exited with exit code 127"})
    assert [f.node for f in found] == ["n2"]
    assert "exit code 127" in found[0].problem
    assert judge({"n1": GOOD}, EXPECTED)[0].problem == "no answer to the check of the node"


def test_what_is_not_promised_is_not_checked():
    modest = Expected(("n1",), "word", "0.1.0")
    assert judge({"n1": replace(GOOD, cpus=1, memory_bytes=1, limits={})}, modest) == []
