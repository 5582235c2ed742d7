"""What the supervisor does next while the ranks run: wait, ask them to stop, end the step, or go on to the judgement. Pure.

Every wait has a limit: a start, a stop, the ranks that are left after a fault or after the others' agreed end, Slurm's KillWait, and
ranks that stand still (`hang`), of which the evidence is collected before the step is ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmtrain.resilience.hang_types import Hang
from slurmtrain.telemetry.exitfile import StopReason

END_RESERVE_S = 20.0
"""Before the job's end: what records, the end of the step and the requeue take."""
QUIET_S = 5.0
"""After a fault: ranks that have not left a record so long after the newest one will leave none."""
EVIDENCE_S = 10.0
"""How long the nodes may take to tell where their ranks are, before a step that hangs is ended."""
START_MARGIN_S = 30.0
"""Beyond the limit of a start, where ranks are seen in it: whoever looks at them finds which one hangs."""


@dataclass(frozen=True)
class Limits:
    """In seconds. `stop_s`: from the stop asked to the last rank gone, where nothing else limits it."""

    start_s: float
    grace_s: float
    stop_s: float
    kill_wait_s: float
    one_by_one: bool = False
    """Ranks of a user's script may finish long after one another."""

    @property
    def after_term_s(self) -> float:
        """What TERM leaves for saving: Slurm's KillWait less the time to write down how it ended."""
        return self.kill_wait_s - min(3.0, self.kill_wait_s / 3)


@dataclass(frozen=True)
class View:
    """The situation. `now` and what ends in `_at` is monotonic time; `wall`, `stop_at` and `end_time` are seconds since the epoch."""

    now: float
    wall: float
    started_at: float
    step_over: bool = False
    spoke: bool = False
    steps_done: int = 0
    fault_at: float | None = None
    """The first record of a fault was seen."""
    record_at: float | None = None
    """The first record of any kind was seen."""
    newest_at: float | None = None
    """The newest record was seen."""
    asked: StopReason | None = None
    asked_at: float | None = None
    notices: int = 0
    term_at: float | None = None
    interrupts: int = 0
    stop_file: bool = False
    stop_at: float | None = None
    end_time: float | None = None
    in_grace: bool = False
    """The job is being preempted: `end_time` is when Slurm takes it, whatever KillWait is."""
    seen: bool = False
    """Agents see ranks that live."""
    begun: bool = False
    """Some rank is past the start, as its agent sees it."""
    hang: Hang | None = None
    evidence_asked_at: float | None = None
    evidence: bool = False
    """All nodes that speak have told where their ranks are."""
    slow: str = ""
    """A rank that is so slow that its node is to be left, in words."""


@dataclass(frozen=True)
class Wait:
    """Look again later."""


@dataclass(frozen=True)
class Judge:
    """The launcher is gone."""


@dataclass(frozen=True)
class Ask:
    """Write the stop file. `deadline`: nobody asked; the job's end is near. `slow`: nobody asked; a rank is too slow."""

    reason: StopReason
    why: str
    deadline: bool = False
    slow: bool = False


@dataclass(frozen=True)
class Collect:
    """Ask the nodes where their ranks are: the step hangs, and will be ended."""


@dataclass(frozen=True)
class EndStep:
    """End what is left of the step."""

    why: str
    grace_s: float


Deed = Wait | Judge | Ask | Collect | EndStep


def decide(view: View, limits: Limits) -> Deed:
    """The next deed: the launcher's end first, then limits that are over, then reasons to stop."""
    if view.step_over:
        return Judge()
    for end in _over(view, limits):
        return end
    if view.hang is not None and view.evidence_asked_at is None:
        return Collect()
    ask = _ask(view)
    return ask if ask is not None and _stronger(ask.reason, view.asked) else Wait()


def _over(view: View, limits: Limits) -> Iterator[EndStep]:
    now, grace = view.now, limits.grace_s
    if view.interrupts > 1:
        yield EndStep("a second Ctrl-C", 0.0)
    if view.term_at is not None and not view.in_grace and now - view.term_at >= limits.after_term_s:
        yield EndStep(f"Slurm kills what is left {limits.kill_wait_s:.0f} s after TERM", 0.0)
    # TERM asks a rank to stop at its next step: after a fault there is none, and the grace is over.
    if view.fault_at is not None and now - view.fault_at >= grace:
        yield EndStep(f"ranks were left {grace:.0f} s after the first fault", 0.0)
    if view.fault_at is not None and view.newest_at is not None and now - view.newest_at >= QUIET_S:
        yield EndStep(f"a fault, and no word from the ranks that are left for {QUIET_S:.0f} s", 0.0)
    if view.record_at is not None and not limits.one_by_one and now - view.record_at >= 4 * grace:
        yield EndStep(f"ranks were left {4 * grace:.0f} s after the first had ended", grace)
    if view.asked_at is not None and now - view.asked_at >= limits.stop_s:
        yield EndStep(f"ranks did not stop within {limits.stop_s:.0f} s", grace)
    if view.asked_at is not None and view.end_time is not None and view.wall >= view.end_time - END_RESERVE_S:
        yield EndStep("the job's time is over", 0.0)
    if view.hang is not None and view.evidence_asked_at is not None and (view.evidence or now - view.evidence_asked_at >= EVIDENCE_S):
        yield EndStep(view.hang.words, 0.0)
    patience = limits.start_s + (START_MARGIN_S if view.seen else 0.0)
    if not view.spoke and not view.begun and now - view.started_at >= patience:
        yield EndStep(f"no rank spoke within start_timeout_s = {limits.start_s:.0f}", grace)


def _ask(view: View) -> Ask | None:
    if view.interrupts:
        return Ask("interrupt", "Ctrl-C: saving and stopping (once more: at once)")
    if view.stop_file:
        return Ask("stop", "STOP: saving and finishing, no requeue")
    if view.term_at is not None:
        return Ask("requeue", "TERM from Slurm: saving what it leaves time for")
    if view.notices:
        return Ask("requeue", "USR2: saving before the job's end")
    return _ask_ourselves(view)


def _ask_ourselves(view: View) -> Ask | None:
    """Where nobody asks."""
    if view.stop_at is not None and view.wall >= view.stop_at and view.steps_done:
        return Ask("requeue", "the job's end is near: saving", deadline=True)
    if view.slow:
        return Ask("requeue", f"{view.slow}: saving, to go on without that node", slow=True)
    return None


def _stronger(reason: StopReason, asked: StopReason | None) -> bool:
    """A person's word replaces a requeue, never the other way."""
    return asked is None or (asked == "requeue" and reason != "requeue")
