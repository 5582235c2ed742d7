"""The request is a pure function of its parts, and is read back as it was written."""

from __future__ import annotations

from slurmtrain.launch.request import LaunchRequest, array_members, digest
from tests.launch.samples import job, request, site


def test_the_jobs_variables_win_over_the_sites():
    made = request(
        job(environment={"A": "job", "Z": "it's $HOME"}),
        site(environment={"set": {"A": "site", "B": "1"}}, fabric={"environment": {"NCCL_X": "2"}}),
    )
    assert made.exports == {"A": "job", "B": "1", "NCCL_X": "2", "Z": "it's $HOME"}


def test_the_template_of_the_job_wins():
    assert request().template == "train"
    assert request(job(template="mine")).template == "mine"


def test_json_gives_the_same_request_back():
    made = request(job(array="2-3%1"), passthrough=("--nice",))
    assert LaunchRequest.model_validate_json(made.model_dump_json()) == made
    assert made.members == (2, 3)


def test_the_log_of_a_job_and_of_a_member():
    assert request().sbatch_options == ("--output=/runs/llama/slurm-%j.out",)
    assert request(job(array="1-2%1")).sbatch_options == ("--output=/runs/llama/slurm-%A_%a.out",)


def test_members_of_an_array():
    assert array_members(None) == ()
    assert array_members("7-7%1") == (7,)


def test_a_digest_tells_any_difference():
    assert digest(job(), site()) == digest(job(), site())
    assert digest(job(), site()) != digest(job(time="5"), site())
