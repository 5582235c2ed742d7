"""Place, variables, meeting, lines and ends of scripts: against torch's own source, recorded lines of other trainers, and closed tables."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
from pathlib import Path

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.config.entry import CONVENTIONS
from slurmtrain.entry.ending import Left, ending_of
from slurmtrain.entry.meeting import Meeting, await_meeting, hold_port, port_of, publish
from slurmtrain.entry.output import Lines, Tail, Told, told_in
from slurmtrain.entry.place import Place, find_place, torchrun_variables
from slurmtrain.entry.wire import Word
from slurmtrain.errors import LaunchError
from slurmtrain.telemetry.events import Event
from tests.entry.stand import begin, script_run
from tests.test_layers import loaded_after


def test_the_script_side_loads_nothing_but_the_standard_library():
    loaded = loaded_after("from slurmtrain.entry import durable, heartbeat, resume_from, stop_requested")
    assert not loaded & {"torch", "numpy", "pydantic", "psutil", "mpi4py", "h5py"}
    assert not loaded_after("import slurmtrain.entry.rank") & {"torch", "numpy", "mpi4py", "h5py"}


def test_outside_slurmtrain_nothing_happens(monkeypatch, tmp_path):
    from slurmtrain import entry

    for name in ("SLURMTRAIN_ENTRY_PIPE", "SLURMTRAIN_ENTRY_STOP", "SLURMTRAIN_RESUME_FROM"):
        monkeypatch.delenv(name, raising=False)
    entry.heartbeat(1, loss=2.0)
    entry.durable(1, tmp_path)
    assert (entry.stop_requested(), entry.resume_from()) == (False, None)
    monkeypatch.setenv("SLURMTRAIN_ENTRY_PIPE", str(tmp_path / "nobody"))
    entry.heartbeat(2)


@pytest.mark.parametrize(
    ("environ", "launcher", "node", "rank"),
    [
        ({"SLURM_LOCALID": "1", "SLURM_PROCID": "0"}, "srun", "local-2", 3),
        ({"SLURM_LOCALID": "0", "SLURM_PROCID": "3"}, "srun", "local-1", 0),
        ({"PMI_RANK": "2"}, "mpiexec", "local-2", 2),
        ({"PMI_RANK": "1", "SLURM_LOCALID": "0"}, "mpiexec", "local-1", 1),
    ],
)
def test_the_world_rank_follows_from_node_and_local_rank_alone(tmp_path, environ, launcher, node, rank):
    run = script_run(tmp_path / "run", "")
    begin(run, nodes=2, gpus=2)
    place = find_place(run.attempt(1), environ, node=node, launcher=launcher)
    assert (place.rank, place.world, place.local_rank, place.node_index, place.nodes) == (rank, 4, rank % 2, rank // 2, 2)


@pytest.mark.parametrize(
    ("environ", "node", "says"),
    [
        ({"SLURM_LOCALID": "2"}, "local-1", "local rank 2"),
        ({"SLURM_LOCALID": "0"}, "n9", "n9"),
        ({}, "local-1", "SLURM_LOCALID = ''"),
    ],
)
def test_a_place_that_the_attempt_does_not_have_is_refused(tmp_path, environ, node, says):
    run = script_run(tmp_path / "run", "")
    begin(run, nodes=2, gpus=2)
    with pytest.raises(LaunchError, match=re.escape(says)):
        find_place(run.attempt(1), environ, node=node, launcher="srun")


def test_all_variables_of_torchs_agent_are_set():
    package = Path(importlib.util.find_spec("torch").origin).parent
    source = (package / "distributed/elastic/agent/server/local_elastic_agent.py").read_text()
    body = source[source.index("worker_env = {") :]
    names = set(re.findall(r'"([A-Z_]+)":', body[: body.index("}")])) | {"LOCAL_RANK"}
    assert len(names) >= 14
    ours = torchrun_variables(Place(5, 8, 1, 4, "n2", 1, 2), address="10.0.0.1", port=4711, run_id="r", attempt=3, more=3)
    assert names - set(ours) == {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}, "set where nobody has set it"
    told = (
        "RANK=5 ROLE_RANK=5 WORLD_SIZE=8 ROLE_WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 NODE_RANK=1 GROUP_WORLD_SIZE=2 "
        "ROLE_NAME=default MASTER_ADDR=10.0.0.1 MASTER_PORT=4711 TORCHELASTIC_RUN_ID=r TORCHELASTIC_RESTART_COUNT=2 "
        "TORCHELASTIC_MAX_RESTARTS=5 TORCHELASTIC_USE_AGENT_STORE=False"
    )
    assert ours == dict(word.split("=") for word in told.split())


def test_two_jobs_of_a_node_get_two_ports_and_each_script_can_listen_on_its_own():
    """C56."""
    with hold_port() as one, hold_port() as other:
        assert port_of(one) != port_of(other)
        for held in (one, other):
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("", port_of(held)))
            with socket.socket() as script:
                script.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                script.bind(("", port_of(held)))
                script.listen()
        ports = {port_of(one), port_of(other)}
        strangers = [socket.socket() for _ in range(50)]
        try:
            for stranger in strangers:
                stranger.bind(("", 0))
            assert not ports & {stranger.getsockname()[1] for stranger in strangers}
        finally:
            for stranger in strangers:
                stranger.close()


def test_where_to_meet_is_said_once_and_waited_for_with_a_limit(tmp_path):
    path, disk, said = tmp_path / "meeting.json", SystemDisk(), Meeting("10.0.0.1", 4711, "/c/step-40", 40, 47)
    assert await_meeting(path, SystemClock(), 0.1) is None
    publish(path, said, disk)
    assert await_meeting(path, SystemClock(), 0.1) == said
    with pytest.raises(LaunchError, match="rank 0"):
        publish(path, said, disk)


# Printed by Megatron-LM core_r0.12 (training.py, training_log) and torchtitan 0.3.0 (metrics.py), shortened at their ends.
MEGATRON = (
    " [2025-03-01 12:00:00] iteration       10/     500 | consumed samples:           80 | elapsed time per iteration (ms): 1250.4 | "
    "learning rate: 1.500000E-05 | global batch size:     8 | lm loss: 1.081234E+01 | loss scale: 1.0 | grad norm: 5.123 |"
)
TITAN = (
    "[titan] 2025-11-01 12:00:00,000 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.2843  \x1b[38;2;180;60;0mgrad_norm:  2.1042  "
    "\x1b[36mmemory:  0.94GiB(0.67%)  \x1b[34mtps: 28,012\x1b[39m"
)


@pytest.mark.parametrize(
    ("convention", "line", "told"),
    [
        ("megatron", MEGATRON, Told(10, {"steps": 500, "loss": 10.81234})),
        ("megatron", MEGATRON.replace("lm loss", "other loss"), Told(10, {"steps": 500})),
        ("megatron", "successfully loaded checkpoint from /c at iteration 10", None),
        ("torchtitan", TITAN, Told(10, {"loss": 7.2843, "grad_norm": 2.1042})),
        ("torchtitan", TITAN.replace("step:", "validate step:"), None),
        ("torchtitan", "Saving the checkpoint (or staging if async is enabled).", None),
    ],
)
def test_lines_of_trainers_that_are_known_by_name(convention, line, told):
    assert told_in(line, re.compile(CONVENTIONS[convention]["progress"])) == told


@pytest.mark.parametrize("line", ["step -5", "step " + "9" * 30, "step " + "9" * 5000])
def test_a_number_that_no_run_reaches_is_no_step(line):
    """Broken: a word of a script's, too great for a heartbeat, ended the process beside it, and so the rank."""
    assert told_in(line, re.compile(r"step (?P<step>\S+)")) is None


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ('{"step":3}', 3),
        ('{"step":-1}', 0),
        ('{"step":1e400}', None),
        (f'{{"step":{"9" * 30}}}', None),
        ("[" * 4000, None),
        ('{"step":"x"}', None),
    ],
)
def test_a_word_that_is_none_is_passed_over(line, step):
    word = Word.from_line(line)
    assert (word.step if word else None) == step


def test_what_a_script_names_like_a_part_of_an_event_changes_no_event():
    line = Event("step", 12.5, 1, 0, {"t": "noon", "rank": 9, "loss": 2.0}).to_line()
    assert Event.from_line(line) == Event("step", 12.5, 1, 0, {"loss": 2.0})


def test_lines_come_whole_however_the_bytes_come():
    data = "step 1\nstep 2\r\nbär 50 %\rend".encode()
    for size in range(1, len(data) + 1):
        lines, found = Lines(), []
        for start in range(0, len(data), size):
            found += lines.feed(data[start : start + size])
        assert b"".join(found) + lines.rest() == data
        assert [line.rstrip() for line in found if line.strip()] == [b"step 1", b"step 2", "bär 50 %".encode()]


def test_the_line_that_says_why_is_found_among_what_follows_it():
    tail = Tail()
    for line in (
        "Traceback (most recent call last):",
        "[rank3]: torch.distributed.DistBackendError: NCCL error",
        "[rank3]:W0101 destroy",
        "",
    ):
        tail.add(line.encode())
    assert tail.error() == "DistBackendError: NCCL error"
    assert tail.last() == "W0101 destroy"


TERM, USR1, KILL = int(signal.SIGTERM), int(signal.SIGUSR1), int(signal.SIGKILL)


@pytest.mark.parametrize(
    ("left", "kind", "code", "error"),
    [
        (Left(0, None, frozenset()), "finished", 0, ""),
        (Left(0, "requeue", frozenset({TERM})), "stopped", 0, "requeue"),
        (Left(-TERM, "stop", frozenset({TERM})), "stopped", 0, "stop"),
        (Left(128 + USR1, "interrupt", frozenset({USR1})), "stopped", 0, "interrupt"),
        (Left(-TERM, None, frozenset({TERM})), "error", 1, "peer lost: ended by SIGTERM from outside"),
        (Left(-TERM, "stop", frozenset()), "error", 1, "the script ended: SIGTERM"),
        (Left(-KILL, "requeue", frozenset({TERM})), "error", 1, "the script ended: SIGKILL"),
        (Left(3, None, frozenset(), "", "bad luck"), "error", 3, "the script ended: code 3; the last line of its errors: bad luck"),
        (Left(1, None, frozenset(), "DistStoreError: x"), "error", 1, "peer lost: DistStoreError: x (code 1)"),
        (Left(1, "stop", frozenset({TERM}), "KeyError: 'x'"), "error", 1, "KeyError: 'x' (code 1)"),
        (Left(None, "stop", frozenset()), "stopped", 0, "stop"),
        (Left(None, None, frozenset()), "error", 1, "peer lost: called away before the script was started"),
    ],
)
def test_how_a_script_left_is_its_ranks_record(left, kind, code, error):
    ending = ending_of(left)
    assert (ending.kind, ending.code, ending.error) == (kind, code, error)
