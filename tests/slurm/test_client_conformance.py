"""The doors to Slurm: CliSlurm on a real cluster and the fake keep the same contract."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.errors import SlurmError
from slurmtrain.shell import SystemShell
from slurmtrain.slurm.cli_client import CliSlurm
from slurmtrain.slurm.client import SlurmClient
from tests.fakes.clock import FakeClock
from tests.fakes.slurm import FakeSlurm

COMMENT = "run=/l/it's $HOME a=b StdErr=x|y"


def eventually(look, limit_s: float = 40):
    """What `look` gives once it is true."""
    deadline = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.1)
    return seen


class SlurmConformance:
    @pytest.fixture
    def slurm(self) -> SlurmClient:
        raise NotImplementedError

    @pytest.fixture
    def script(self, tmp_path) -> Path:
        path = tmp_path / "a job.sh"
        path.write_text("#!/bin/bash\nexec sleep 300\n")
        return path

    @pytest.fixture
    def options(self, tmp_path) -> list[str]:
        return [f"--output={tmp_path}/out", "--job-name=llama 8b", f"--comment={COMMENT}"]

    def running(self, slurm, script, options):
        job_id = slurm.submit(script, options=options)
        return eventually(lambda: (info := slurm.job(job_id)) and info.state == "RUNNING" and info)

    def test_a_job_from_its_submission_to_its_end(self, slurm, script, options):
        info = self.running(slurm, script, [*options, "--nodes=2"])
        assert (info.name, info.comment, info.restarts, info.ended, info.exit_code) == ("llama 8b", COMMENT, 0, False, None)
        assert len(info.nodes) == 2
        assert info.batch_host == info.nodes[0]
        assert info.cpus_per_node > 0
        assert info.memory_per_node_bytes > 1 << 20
        age_s, mine = slurm.my_jobs(max_age_s=0)
        (queued,) = [other for other in mine if other.job_id == info.job_id]
        assert age_s == pytest.approx(0, abs=5)
        assert (queued.name, queued.comment, queued.nodes, queued.state) == (info.name, COMMENT, info.nodes, "RUNNING")
        eventually(lambda: "batch" in [step.step for step in slurm.steps(info.job_id)])
        slurm.cancel(info.job_id)
        ended = eventually(lambda: (now := slurm.job(info.job_id)) and now.ended and now)
        assert ended.state == "CANCELLED"
        assert ended.exit_code is not None
        assert info.job_id not in [other.job_id for other in slurm.my_jobs(max_age_s=0)[1]]
        assert slurm.steps(info.job_id) == []
        slurm.cancel(info.job_id)  # it has ended: nothing

    def test_a_requeued_job_keeps_its_id_and_waits(self, slurm, script, options):
        job_id = self.running(slurm, script, [*options, "--requeue"]).job_id
        slurm.requeue(job_id)
        info = eventually(lambda: (now := slurm.job(job_id)) and now.state == "PENDING" and now)
        assert (info.job_id, info.restarts, info.nodes, info.ended) == (job_id, 1, (), False)
        slurm.requeue(job_id)  # it waits already: nothing
        assert slurm.job(job_id).restarts == 1
        slurm.cancel(job_id)

    def test_a_job_that_waits_is_told_where_not_to_start_and_when(self, slurm, script, options):
        job_id = self.running(slurm, script, [*options, "--requeue"]).job_id
        slurm.start_in(job_id, 60)  # it runs: nothing
        with pytest.raises(SlurmError, match="no longer pending"):
            slurm.avoid(job_id, ["n2"])
        slurm.requeue(job_id)
        eventually(lambda: slurm.job(job_id).restarts == 1)
        slurm.avoid(job_id, ["n3", "n2"])
        assert sorted(slurm.job(job_id).avoided) == ["n2", "n3"]
        slurm.avoid(job_id, [])
        assert slurm.job(job_id).avoided == ()
        eventually(lambda: slurm.job(job_id).state == "PENDING")
        begins = []
        for seconds in (300, 30):
            slurm.start_in(job_id, seconds)
            begins.append(slurm.job(job_id).start_time)
        assert begins[0] - begins[1] == pytest.approx(270, abs=5)
        eventually(lambda: slurm.job(job_id).reason == "BeginTime")
        slurm.cancel(job_id)

    def test_nodes_of_a_partition(self, slurm):
        assert {"n1", "n2", "n3", "n4"} <= {node.name for node in slurm.partition_nodes("main")}
        assert slurm.partition_nodes("nowhere") == []

    def test_a_signal_to_the_batch_shell_ends_nothing(self, slurm, script, options):
        job_id = self.running(slurm, script, options).job_id
        try:
            slurm.cancel(job_id, signal="CONT", batch=True)
            assert slurm.job(job_id).state == "RUNNING"
        finally:
            slurm.cancel(job_id)

    def test_what_nobody_knows(self, slurm):
        assert slurm.job("4000000") is None
        assert slurm.finished_job("4000000") is None
        assert slurm.steps("4000000") == []
        assert slurm.nodes(["nowhere9"]) == []
        assert [(place.node, place.leaf, place.block) for place in slurm.places(["nowhere9"])] == [("nowhere9", "", "")]
        assert slurm.config_value("NoSuchKey") is None
        with pytest.raises(SlurmError, match="Invalid job id"):
            slurm.requeue("4000000")
        with pytest.raises(SlurmError, match="is not a job id"):
            slurm.job("n1")

    def test_nodes_and_configuration(self, slurm):
        first, second = slurm.nodes(["n2", "n1"])
        assert (first.name, second.name) == ("n2", "n1")
        assert (first.down, first.cpus > 0, first.memory_bytes > 1 << 30, first.gres) == (False, True, True, "gpu:4")
        assert slurm.config_value("SlurmdTimeout") == "10 sec"


class TestFakeSlurm(SlurmConformance):
    @pytest.fixture
    def slurm(self):
        return FakeSlurm(FakeClock())


@pytest.mark.slurm
class TestCliSlurm(SlurmConformance):
    @pytest.fixture
    def slurm(self, cluster, tmp_path):
        return CliSlurm(SystemShell(), SystemClock(), cluster.environ, cache_dir=tmp_path / "cache")

    def test_members_of_an_array_are_asked_for_and_requeued_by_their_own_ids(self, slurm, script, options):
        array = slurm.submit(script, options=[*options, "--array=1-2%1"])
        first = eventually(lambda: (info := slurm.job(f"{array}_1")) and info.state == "RUNNING" and info)
        assert (first.job_id, first.array) == (f"{array}_1", (array, "1"))
        assert (slurm.job(f"{array}_2").state, slurm.job(f"{array}_2").array) == ("PENDING", (array, "2"))
        assert {f"{array}_1", f"{array}_2"} <= {info.job_id for info in slurm.my_jobs(max_age_s=0)[1]}
        slurm.requeue(f"{array}_1")
        eventually(lambda: slurm.job(f"{array}_1").restarts == 1)
        slurm.cancel(array)
        eventually(lambda: slurm.job(f"{array}_2").ended)

    def test_leaves_of_the_tree(self, slurm):
        assert [place.leaf for place in slurm.places(["n1", "n6"])] == ["leaf1", "leaf2"]

    def test_junk_of_an_outer_job_changes_nothing(self, cluster, script, options, tmp_path):
        env = {
            **cluster.environ,
            "SLURM_NTASKS": "7",
            "SBATCH_PARTITION": "gone",
            "SLURM_CPU_BIND": "junk",
            "SQUEUE_STATES": "PD",
            "SLURM_JOB_ID": "77",
        }
        slurm = CliSlurm(SystemShell(), SystemClock(), env, cache_dir=tmp_path / "cache")
        info = self.running(slurm, script, [*options, "--nodes=1"])
        assert (info.partition, info.cpus_per_node) == ("main", 1)
        assert info.job_id in [other.job_id for other in slurm.my_jobs(max_age_s=0)[1]]
        slurm.cancel(info.job_id)
