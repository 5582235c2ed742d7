"""`python -m slurmtrain.entry.rank RUN`: one rank of a job that runs a script of the user's. Starts the script with torchrun's variables
and stays beside it until it has ended; the rank's exit file says how.

Neither torch nor MPI is loaded here. A rank that cannot start its script leaves its record and code 1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.config.entry import EntryConfig
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.stored import read_job, read_site
from slurmtrain.entry import wire
from slurmtrain.entry.beside import PASSED_ON, Beside
from slurmtrain.entry.child import start
from slurmtrain.entry.corner import Corner
from slurmtrain.entry.ending import Ending
from slurmtrain.entry.lookout import Lookout
from slurmtrain.entry.meeting import Meeting, await_meeting, hold_port, port_of, publish
from slurmtrain.entry.narrator import Narrator, going_on_from, last_step, look
from slurmtrain.entry.place import Place, attempt_number, find_place, torchrun_variables, without_mpi
from slurmtrain.errors import EXIT_CONFIG, EXIT_FAULT, LaunchError, SlurmtrainError, UserError, one_line
from slurmtrain.fabric.rendezvous import Endpoint, choose_endpoint, default_interface, local_interfaces, read_routes, set_socket_interfaces
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.errorcause import cause_of_error
from slurmtrain.telemetry.exitfile import PEER_LOST, ExitRecord
from slurmtrain.telemetry.heartbeat import Heart, SharedHeart, heartbeat_dir, launcher_rank, node_name, open_heart
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.telemetry.tracking import run_id

PYTHONS = frozenset({"python", "python3"})


@dataclass(frozen=True)
class Here:
    """Where this rank is, and what of. `number`: of the attempt."""

    run: RunDir
    number: int
    job: JobConfig
    site: SiteConfig
    entry: EntryConfig
    place: Place
    environ: MutableMapping[str, str]
    clock: Clock

    @property
    def reads(self) -> bool:
        """Whether this rank tells of the script's progress."""
        return self.place.rank == (0 if self.entry.progress_rank != "last" else self.place.world - 1)


def main(argv: list[str]) -> int:
    """Run one rank; the code of the process."""
    if len(argv) != 2:
        sys.stderr.write("usage: python -m slurmtrain.entry.rank RUN\n")
        return 2
    run, environ, clock = RunDir(Path(argv[1])), os.environ, SystemClock()
    node, rank = node_name(environ), launcher_rank(environ)
    try:
        number = attempt_number(environ)
    except SlurmtrainError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    heart, why = open_heart(run.path, number, environ, clock)
    if why and rank == 0:
        sys.stderr.write(why + "\n")
    try:
        here = find(run, number, environ, clock, node)
        rank = here.place.rank
        heart.become(rank)
        record = attend(here, heart)
    except Exception as error:  # noqa: BLE001 whatever it is, the supervisor must read of it
        record = _refused(error, rank, node)
    with suppress(OSError):
        heart.close()
    return _leave(run, number, record)


def find(run: RunDir, number: int, environ: MutableMapping[str, str], clock: Clock, node: str) -> Here:
    """Raises LaunchError, ConfigError."""
    job, site = read_job(run.job_json), read_site(run.site_json)
    if job.entry is None:
        raise LaunchError(f"{run.job_json} has no [entry]: this is a run of slurmtrain's own trainer")
    place = find_place(run.attempt(number), environ, node=node, launcher=site.launcher)
    return Here(run, number, job, site, job.entry.resolved(), place, environ, clock)


def attend(here: Here, heart: Heart) -> ExitRecord:
    """Start the script and stay beside it. Raises LaunchError or ConfigError where it cannot be started, TimeoutError, OSError."""
    place, attempt = here.place, here.run.attempt(here.number)
    with ExitStack() as stack:
        corner = _corner(heartbeat_dir(here.run.path, here.number, place.node), place)
        if corner is not None:
            stack.callback(corner.close)
        for_files = partial(look, here.run, here.entry) if here.reads else None
        lookout = Lookout(attempt, corner, here.clock, for_stop=place.local_rank == 0, look=for_files)
        stack.callback(lookout.stop)
        beside = Beside(here.entry, corner, lookout, here.clock, out=_writer(1), err=_writer(2))
        for number in PASSED_ON:
            signal.signal(number, beside.hear)
        meeting = arrange(here, beside, stack)
        ending = (
            beside.never_begun()
            if meeting is None
            else _run(here, beside, lookout, heart, environment=script_environment(here, meeting, corner), meeting=meeting)
        )
    if ending.kind == "error":
        with suppress(OSError):
            attempt.rank_log(place.rank).write_text(beside.tail.text())
    return ExitRecord(place.rank, ending.kind, ending.code, beside.step, ending.error, place.node)


def arrange(here: Here, beside: Beside, stack: ExitStack) -> Meeting | None:
    """Where to meet: said by rank 0, which keeps the port until the stack is closed, and heard by the others; None: called away.

    Raises ConfigError, LaunchError, OSError; TimeoutError where rank 0 does not say it in time.
    """
    path, limit_s = here.run.attempt(here.number).meeting, float(here.site.timeouts.start_timeout_s)
    if here.place.rank == 0 and not beside.called_away:
        held = stack.enter_context(hold_port())
        found = going_on_from(here.run, here.entry)
        path_there, step = (None, None) if found is None else (str(found.path), found.step)
        publish(path, Meeting(_endpoint(here).address, port_of(held), path_there, step, last_step(here.run)), SystemDisk())
    meeting = await_meeting(path, here.clock, limit_s, called_away=lambda: beside.called_away)
    if meeting is None and not beside.called_away:
        raise TimeoutError(f"rank 0 has not said within {limit_s:.0f} s where to meet")
    return None if beside.called_away else meeting


def _run(here: Here, beside: Beside, lookout: Lookout, heart: Heart, *, environment: Mapping[str, str], meeting: Meeting) -> Ending:
    child = start(words_of(here), env=environment, cwd=here.run.code, keep_fds=here.entry.mpi)
    lookout.start()
    own: Heart = heart
    if isinstance(heart, SharedHeart):
        own = SharedHeart(heart.path.parent, here.place.rank, here.number, here.clock, pid=child.pid)
    narrator: Narrator | None = None
    if here.reads:
        sink = EventSink(here.run.event_file(0), here.clock, here.number, 0)
        narrator = Narrator(here.run, sink, here.clock, SystemDisk(), before=meeting.last_step, durable=meeting.resume_step)
        narrator.begin(here.place, meeting.resume_step)
        beside.step = meeting.resume_step or 0
    ending = beside.run(child, own, narrator)
    with suppress(OSError):
        own.close()
    if narrator is not None:
        with suppress(OSError):
            beside.see(look(here.run, here.entry))
        narrator.end(ending.kind, beside.step, ending.error)
    return ending


def words_of(here: Here) -> list[str]:
    """The command, with the folders and the interpreter filled in."""
    places = {"{run}": str(here.run.path), "{checkpoints}": str(here.run.checkpoints)}
    words = [_filled(word, places) for word in here.entry.command]
    return [sys.executable, *words[1:]] if words[0] in PYTHONS else words


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


def script_environment(here: Here, meeting: Meeting, corner: Corner | None) -> dict[str, str]:
    """What the script finds: this rank's own variables, torchrun's, and slurmtrain's; what the job has set stays. Raises ConfigError."""
    place, identity = here.place, run_id(here.run)
    env = dict(here.environ) if here.entry.mpi else without_mpi(here.environ)
    env |= torchrun_variables(
        place, address=meeting.address, port=meeting.port, run_id=identity, attempt=here.number, more=here.job.recovery.no_progress
    )
    defaults = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}
    if place.rank == 0:
        defaults |= {"WANDB_RUN_ID": identity, "WANDB_RESUME": "allow"}
    env |= {name: value for name, value in defaults.items() if name not in env}
    env |= {"SLURMTRAIN_RUN": str(here.run.path), "SLURMTRAIN_CHECKPOINTS": str(here.run.checkpoints), "SLURMTRAIN_RUN_ID": identity}
    env |= {wire.RESUME_VARIABLE: meeting.resume_from or "", "SLURMTRAIN_RESUME_STEP": _text(meeting.resume_step)}
    env |= {"SLURMTRAIN_LAST_STEP": str(meeting.last_step)}
    if corner is not None:
        env |= {wire.PIPE_VARIABLE: str(corner.pipe), wire.STOP_VARIABLE: str(corner.stop)}
    set_socket_interfaces(env, here.site.fabric.rendezvous_interface, _endpoint(here))
    return env


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _endpoint(here: Here) -> Endpoint:
    """The end of the network, on this node, on which ranks meet. Raises ConfigError."""
    wanted, alone = here.site.fabric.rendezvous_interface, here.place.nodes == 1
    return choose_endpoint(wanted, local_interfaces(), one_node=alone, default=default_interface(read_routes()))


def _corner(folder: Path, place: Place) -> Corner | None:
    try:
        return Corner(folder, place.rank, place.mark)
    except OSError as error:
        sys.stderr.write(f"rank {place.rank}: {folder} cannot be used ({error.strerror}): slurmtrain.entry is not heard\n")
        return None


def _writer(fd: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(fd, data) :]

    return write


def _refused(error: Exception, rank: int, node: str) -> ExitRecord:
    """The record of a rank whose script was never started."""
    if isinstance(error, (UserError, LaunchError)):
        return ExitRecord(rank, "config", EXIT_CONFIG, 0, one_line(str(error)), node, "configuration")
    if isinstance(error, TimeoutError):
        return ExitRecord(rank, "error", EXIT_FAULT, 0, f"{PEER_LOST}{one_line(str(error))}", node)
    return ExitRecord(rank, "error", EXIT_FAULT, 0, one_line(f"{type(error).__name__}: {error}"), node, cause_of_error(error))


def _leave(run: RunDir, number: int, record: ExitRecord) -> int:
    """Write the record; the code of the process."""
    attempt = run.attempt(number)
    try:
        attempt.make(attempt.exit_dir)
        SystemDisk().write(attempt.exit_file(record.rank), record.to_json())
    except OSError as error:
        sys.stderr.write(f"rank {record.rank}: its end could not be recorded: {error}\n")
    if record.kind in {"error", "config"}:
        sys.stderr.write(f"rank {record.rank} on {record.node}: {record.error}\n")
    return record.code


if __name__ == "__main__":
    exit_code = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
