"""An attempt's end goes to the site's fault log, and each node to blame for it to the site's command, where the site asks for them.

Neither may cost the run anything: what fails is said in a line, and a folder or a command that does not answer is left alone.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Sequence

from slurmtrain.config.site import FAULT_FIELDS
from slurmtrain.errors import SlurmError, one_line
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.exclude import blamed
from slurmtrain.resilience.judgement import durable_step
from slurmtrain.resilience.records import AttemptRecord, Outcome, read_owner
from slurmtrain.shell import Shell, SystemShell
from slurmtrain.slurm.hostlist import expand, fold
from slurmtrain.telemetry.faultlog import LoggedEnd, append, is_logged
from slurmtrain.telemetry.history import whoami

PATIENCE_S = 10.0
"""For a shared folder, or a command, that does not answer."""
_LOOKS = 100


def log_end(c: Composition, record: AttemptRecord, outcome: Outcome, bad: Sequence[str] = (), *, shell: Shell | None = None) -> None:
    """Tell the site of an attempt that has ended, and of the nodes to blame. Raises nothing."""
    wish = c.setup.site.reliability
    if wish.fault_log is None and wish.fault_command is None:
        return
    try:
        end = logged(record, outcome, bad, site=c.setup.site.name, user=whoami().partition("@")[0])
    except SlurmError as error:
        c.say(f"the site's fault log: {error}")
        return
    if (path := wish.fault_log) is not None:
        line = end.to_line()
        _patiently(c, str(path), lambda: append(path, line))
    for node in bad if wish.fault_command is not None else ():
        _call(c, shell or SystemShell(), wish.fault_command or "", end, node)


def log_missed(c: Composition, record: AttemptRecord) -> None:
    """An earlier start's attempt whose supervisor did not live to tell of it: lost with its node, perhaps. Raises nothing.

    What a deputy has written of it counts; else the batch host is to blame where Slurm calls it down.
    """
    path = c.setup.site.reliability.fault_log
    if path is None:
        return
    outcome = record.outcome or missed_outcome(c, record)
    bad = [one.node for one in blamed(outcome)]
    try:
        line = logged(record, outcome, bad, site=c.setup.site.name, user=whoami().partition("@")[0]).to_line()
    except SlurmError:
        return
    _patiently(c, str(path), lambda: None if is_logged(path, c.setup.site.name, record.job_id, record.attempt) else append(path, line))


def missed_outcome(c: Composition, record: AttemptRecord) -> Outcome:
    """Of an attempt of an earlier start that nobody lived to close: its node is to blame where Slurm calls it down. No other has run since,
    so that the newest checkpoint is what it has left.
    """
    host = batch_host(c, record)
    t_end, durable = _newest_sign(c, record), durable_step(c)
    if not c.allocation.down([host]):
        words = "its supervisor was lost without a word"
        return Outcome("failed", words, last_durable_step=durable, t_end=t_end, category="launch_failure")
    words = f"batch host {host} is down, and its supervisor with it"
    return Outcome("node_failure", words, node=host, last_durable_step=durable, t_end=t_end, category="node_failure", fault_t=t_end)


def batch_host(c: Composition, record: AttemptRecord) -> str:
    """The node on which the attempt's supervisor ran: as its claim says, else Slurm's first of the job."""
    owner = read_owner(c.run.attempt(record.attempt).claim)
    nodes = expand(fold((*record.nodes, *record.spares, *record.passed_over)))
    names = (owner.host, owner.host.partition(".")[0]) if owner is not None else ()
    return next((name for name in names if name in nodes), nodes[0])


def _newest_sign(c: Composition, record: AttemptRecord) -> float:
    try:
        return max(record.t_start, c.run.event_file(0).stat().st_mtime)
    except OSError:
        return record.t_start


def logged(record: AttemptRecord, outcome: Outcome, bad: Sequence[str], *, site: str, user: str) -> LoggedEnd:
    """The line of an end. What went wrong is told in words only of nodes: a user's own errors are the user's. Raises SlurmError."""
    return LoggedEnd(
        t=outcome.t_end,
        site=site,
        user=user,
        job_id=record.job_id,
        attempt=record.attempt,
        cause=outcome.category or outcome.kind,
        nodes=fold((*record.nodes, *record.spares, *record.passed_over)),
        hours=max(0.0, outcome.t_end - record.t_start) / 3600,
        bad=fold(bad),
        detail=outcome.cause if bad else "",
    )


def _patiently(c: Composition, what: str, deed: Callable[[], None]) -> None:
    """Do it in a thread that nobody waits for beyond a limit: a call to a folder that hangs never comes back."""
    done, failed = threading.Event(), list[str]()

    def run() -> None:
        try:
            deed()
        except OSError as error:
            failed.append(error.strerror or str(error))
        done.set()

    threading.Thread(target=run, name="fault log", daemon=True).start()
    if not any(c.clock.wait(done, PATIENCE_S / _LOOKS) for _ in range(_LOOKS)):
        c.say(f"{what} does not answer: the end of the attempt is not in the site's fault log")
    elif failed:
        c.say(f"{what}: {failed[0]}: the end of the attempt is not in the site's fault log")


def _call(c: Composition, shell: Shell, command: str, end: LoggedEnd, node: str) -> None:
    values = {**end.__dict__, "job": end.job_id, "run": c.run.name, "node": node}
    words = shlex.split(command)
    for name in FAULT_FIELDS:  # what went wrong, in words of others, comes last: nothing is filled into it
        words = [word.replace(f"{{{name}}}", str(values[name])) for word in words]
    done = shell.run(words, timeout_s=PATIENCE_S, env={**os.environ, **c.environ}, stdin=end.to_line().decode())
    if not done.ok:
        c.say(f"the site's fault_command ended with code {done.rc}: {one_line(done.err, 200) or words[0]}")
