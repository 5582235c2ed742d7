"""Who a process is in the world, and what is refused. The expected ranks are written out by hand."""

from __future__ import annotations

import json

import pytest

from slurmtrain.errors import LaunchError
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.identity import AttemptStart, Claim, attempt_number, claim, local_ranks, read_attempt, world_ranks

START = AttemptStart(("n9", "n2"), 2)


@pytest.mark.parametrize(
    ("environ", "launcher", "expected"),
    [
        ({"SLURMD_NODENAME": "n2", "SLURM_LOCALID": "3"}, "srun", Claim("n2", 3, "host")),
        ({"SLURMTRAIN_NODE": "e1", "SLURMD_NODENAME": "n2", "SLURM_LOCALID": "0"}, "srun", Claim("e1", 0, "host")),
        # Under mpiexec in a batch shell Slurm's variables are the shell's, the same for all ranks.
        ({"SLURMTRAIN_NODE": "e1", "SLURMD_NODENAME": "n2", "SLURM_LOCALID": "0"}, "mpiexec", Claim("e1", None, "host")),
        ({"SLURMD_NODENAME": "n2"}, "mpiexec", Claim("host", None, "host")),
        ({}, "srun", Claim("host", None, "host")),
    ],
)
def test_node_and_local_rank_come_from_the_launcher(environ, launcher, expected):
    assert claim(environ, launcher, "host") == expected


def test_world_ranks_follow_the_attempts_order_of_nodes():
    # srun sorts nodes: n2 comes first in its order, and here its tasks come interleaved.
    claims = [Claim("n2", 0), Claim("n9", 1), Claim("n2", 1), Claim("n9", 0)]
    assert world_ranks(claims, START) == [2, 1, 3, 0]


def test_without_a_local_rank_the_place_among_those_of_the_node_counts():
    claims = [Claim("n2", None), Claim("n9", None), Claim("n2", None), Claim("n9", None)]
    assert local_ranks(claims) == [0, 0, 1, 1]
    assert world_ranks(claims, START) == [2, 0, 3, 1]


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ([("n9", 0), ("n9", 1), ("n2", 0), ("n3", 0)], "promised on n9, n2, but ranks run on n3$"),
        ([("n9", 0), ("n9", 1), ("n3", 0), ("n3", 1)], "but ranks run on n3 and no rank runs on n2$"),
        ([("n9", 0), ("n9", 1), ("n9", 2), ("n9", 3)], "but no rank runs on n2$"),
        ([("n9", 0), ("n9", 1), ("n9", 2), ("n2", 0)], "promised 2 ranks: n9 has 3, n2 has 1"),
        ([("n9", 0), ("n9", 0), ("n2", 0), ("n2", 1)], r"2 ranks claim local rank 0 of node n9 \(hosts a, b\)"),
        ([("n9", 0), ("n9", 5), ("n2", 0), ("n2", 1)], "node n9 has a local rank 5"),
    ],
)
def test_missing_foreign_and_doubled_places_are_refused(claims, words):
    made = [Claim(node, local, host) for (node, local), host in zip(claims, "abcd", strict=True)]
    with pytest.raises(LaunchError, match=words):
        world_ranks(made, START)


def test_the_start_of_an_attempt_is_read(tmp_path):
    attempt = RunDir(tmp_path).attempt(3)
    attempt.create()
    attempt.attempt_json.write_text(json.dumps({"v": 1, "nodes": ["n9", "n2"], "tasks_per_node": 2, "later": "unknown"}))
    assert read_attempt(attempt) == START


@pytest.mark.parametrize("content", [None, "{", "[]", '{"nodes": ["n1"]}'])
def test_a_start_that_is_not_whole_is_a_launch_error(tmp_path, content):
    attempt = RunDir(tmp_path).attempt(3)
    attempt.create()
    if content is not None:
        attempt.attempt_json.write_text(content)
    with pytest.raises(LaunchError, match=r"attempt\.json.*attempt 3"):
        read_attempt(attempt)


def test_a_rank_started_by_hand_is_told_so():
    assert attempt_number({"SLURMTRAIN_ATTEMPT": "0012"}) == 12
    with pytest.raises(LaunchError, match="slurmtrain run"):
        attempt_number({})
