"""The loop beside the running ranks: looks twice a second, prints what they tell, and does what `decide` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.errors import LaunchError
from slurmtrain.resilience.allocation import Allocation
from slurmtrain.resilience.deadline import stop_at, too_short
from slurmtrain.resilience.decide import Ask, Collect, EndStep, Judge, Limits, View, decide
from slurmtrain.resilience.guard import Guard, hang_of
from slurmtrain.resilience.hang_types import Hang
from slurmtrain.resilience.lines import event_line
from slurmtrain.resilience.signals import INTERRUPT, NOTICE, TERM, Signals
from slurmtrain.resilience.tracker import Tracker
from slurmtrain.rundir import AttemptDir, RunDir
from slurmtrain.steps.launcher import Step
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.exitfile import ExitRecord, StopReason, read_exit_records
from slurmtrain.telemetry.reader import EventTail
from slurmtrain.telemetry.stopfile import stop_bytes

POLL_S = 0.5
SETTLE_S = 5.0
"""How long a record may take from a rank that is gone to the batch host's view of the shared folder."""


@dataclass(frozen=True)
class Watched:
    """How the step came to its end. `own_will`: the stop was asked because of USR2 or the deadline; `ended_because`: why it was ended.

    `hang`: what stood still, or the rank that was too slow to go on with; `fault_t`: the newest sign of progress before something went
    wrong, `seen_t`: when that was noticed, both in seconds since the epoch, None where nothing did.
    """

    records: dict[int, ExitRecord]
    asked: StopReason | None
    own_will: bool
    ended_because: str
    hang: Hang | None = None
    fault_t: float | None = None
    seen_t: float | None = None


class Watch:
    """One attempt's loop. `guard`: looks after what the nodes tell; None: nobody does."""

    def __init__(
        self,
        run: RunDir,
        attempt: AttemptDir,
        world: int,
        limits: Limits,
        *,
        clock: Clock,
        disk: Disk,
        allocation: Allocation,
        signals: Signals,
        say: Callable[[str], None],
        steps: int,
        tokens_per_step: int,
        guard: Guard | None = None,
    ) -> None:
        self._run, self._attempt, self._world, self._limits = run, attempt, world, limits
        self._clock, self._disk, self._allocation, self._signals, self._say = clock, disk, allocation, signals, say
        self._steps, self._tokens_per_step, self._guard = steps, tokens_per_step, guard
        self.tracker = Tracker(attempt.number)
        # Rank 0's file alone: twice a second the files of a thousand nodes would be a load on the shared folder.
        self._tail = EventTail(run.event_file(0))
        self._records: dict[int, ExitRecord] = {}
        self._first: dict[str, float] = {}
        self._newest_at: float | None = None
        self._asked: tuple[StopReason, float] | None = None
        self._deadline = False
        self._heard_term = False
        self._ended_because = ""
        self._over = False
        self._hang: Hang | None = None
        self._fault_t: float | None = None
        self._seen_t: float | None = None

    def learn(self) -> None:
        """Take the events of earlier attempts before the ranks start, and say so when the job's time is too short."""
        self.tracker.take(self._tail.poll())
        grant = self._allocation.look()
        if warning := too_short(self._clock.time(), grant.end_time, [self.tracker.slowest_save_s], self.tracker.step_s):
            self._say(warning)
        for note in self._guard.notes() if self._guard is not None else ():
            self._say(note)

    def until_over(self, step: Step, before_end: Callable[[Watched], None]) -> Watched:
        """Look until the launcher is gone and every record that will come is there.

        `before_end` is called before the step is ended by force: that takes a while on a dead node, and Slurm may end this process
        in it; what is known must stand before.
        """
        started_at = self._clock.monotonic()
        while True:
            over = step.poll() is not None
            self._look()
            deed = decide(self._view(started_at, step_over=over), self._limits)
            if isinstance(deed, Judge):
                self._end_orphans(step)
                break
            if isinstance(deed, Ask):
                self._ask(deed)
            elif isinstance(deed, Collect):
                self._collect()
            elif isinstance(deed, EndStep):
                self._give_evidence()
                self._say(f"ending the step: {deed.why}")
                self._ended_because = deed.why
                before_end(self._so_far())
                self._end(step, deed)
                break
            self._clock.sleep(POLL_S)
        ended_t, self._over = self._clock.time(), True
        self._settle()
        if len(self._records) < self._world or any(r.kind == "error" for r in self._records.values()):
            self._notice(seen_t=ended_t)
        return self._so_far()

    def _so_far(self) -> Watched:
        own_will = self._deadline or self._signals.count(NOTICE) > 0
        asked = self._asked[0] if self._asked else None
        return Watched(dict(self._records), asked, own_will, self._ended_because, self._hang, self._fault_t, self._seen_t)

    def _look(self) -> None:
        for event in self.tracker.take(self._tail.poll()):
            self._print(event)
        if len(self._records) < self._world and any(self._attempt.exit_dir.glob("rank-*.json")):
            known, self._records = len(self._records), read_exit_records(self._attempt.exit_dir)
            if self._records:
                self._first.setdefault("record", self._clock.monotonic())
            if len(self._records) > known:
                self._newest_at = self._clock.monotonic()
            if any(r.kind in {"error", "config"} for r in self._records.values()):
                self._first.setdefault("fault", self._clock.monotonic())
                self._notice()
        if self._guard is not None and not self._over:
            was = self._guard.hang
            self._guard.look(median_s=self.tracker.median_step_s, first_done=self.tracker.steps_done > 0)
            if was is not None and self._guard.hang is None:
                self._say("the ranks move again")
                self._fault_t = self._seen_t = None

    def _notice(self, *, fault_t: float | None = None, seen_t: float | None = None) -> None:
        """Something went wrong. `fault_t`: the newest sign of progress, where events do not know better; `seen_t`: now, if not given."""
        if self._seen_t is None:
            self._seen_t = self._clock.time() if seen_t is None else seen_t
            newest = fault_t if fault_t is not None else self.tracker.newest_t
            self._fault_t = None if newest is None else min(newest, self._seen_t)

    def _collect(self) -> None:
        assert self._guard is not None
        assert self._guard.hang is not None
        self._say(f"{self._guard.hang.words}; asking the nodes where their ranks are")
        self._notice(fault_t=self._clock.time() - self._guard.hang.seconds)
        self._guard.collect()

    def _give_evidence(self) -> None:
        """Before the step is ended: what the nodes told about a hang."""
        if self._guard is None or self._guard.hang is None or self._guard.asked_at is None:
            return
        for line in self._guard.evidence():
            self._say(line)
        self._hang = self._guard.hang

    def _print(self, event: Event) -> None:
        if event.rank == 0 or event.kind == "error":
            line = event_line(event, steps=self._steps, tokens_per_step=self._tokens_per_step)
            if line:
                self._say(line)

    def _view(self, started_at: float, *, step_over: bool) -> View:
        grant, guard = self._allocation.look(fresh=self._term_is_new()), self._guard
        return View(
            now=self._clock.monotonic(),
            wall=self._clock.time(),
            started_at=started_at,
            step_over=step_over,
            spoke=self.tracker.spoke or bool(self._records),
            steps_done=self.tracker.steps_done,
            fault_at=self._first.get("fault"),
            record_at=self._first.get("record"),
            newest_at=self._newest_at,
            asked=self._asked[0] if self._asked else None,
            asked_at=self._asked[1] if self._asked else None,
            notices=self._signals.count(NOTICE),
            term_at=self._signals.since(TERM),
            interrupts=self._signals.count(INTERRUPT),
            stop_file=self._run.stop.exists(),
            stop_at=stop_at(grant.end_time, [self.tracker.slowest_save_s], self.tracker.step_s),
            end_time=grant.end_time,
            in_grace=grant.job is not None and grant.job.in_grace,
            seen=guard is not None and guard.seen,
            begun=guard is not None and guard.begun,
            hang=guard.hang if guard is not None else None,
            evidence_asked_at=guard.asked_at if guard is not None else None,
            evidence=guard is not None and guard.hang is not None and guard.collected,
            slow=str(guard.slow) if guard is not None and guard.slow is not None else "",
        )

    def _term_is_new(self) -> bool:
        """Once after TERM: only Slurm can tell a preemption, whose end is not that of KillWait."""
        heard, self._heard_term = self._heard_term, self._signals.count(TERM) > 0
        return self._heard_term and not heard

    def _ask(self, ask: Ask) -> None:
        self._say(ask.why)
        self._deadline = self._deadline or ask.deadline
        if ask.slow and self._guard is not None and self._guard.slow is not None:
            self._hang = hang_of(self._guard.slow)
        self._asked = (ask.reason, self._asked[1] if self._asked else self._clock.monotonic())
        try:
            self._disk.write(self._attempt.stop, stop_bytes(ask.reason))
        except OSError as error:
            self._say(f"cannot write {self._attempt.stop}: {error.strerror}: the ranks are not told to stop")

    def _end(self, step: Step, deed: EndStep) -> None:
        try:
            step.end(deed.grace_s)
        except LaunchError as error:
            self._say(str(error))

    def _end_orphans(self, step: Step) -> None:
        """A launcher that was killed leaves its ranks running: they are told to save, and then ended."""
        if (step.poll() or 0) < 0:
            self._say("the launcher of the ranks was killed: ending what it left")
            self._end(step, EndStep("", self._limits.grace_s))

    def _settle(self) -> None:
        """Records may reach this host later than the launcher's end: wait for those that are due, a little. Ranks that hung leave none."""
        limit = self._clock.monotonic() + (0.0 if self._hang is not None and self._ended_because else SETTLE_S)
        while True:
            self._look()
            due = len(self._records) < self._world and not any(r.kind in {"error", "config"} for r in self._records.values())
            hurry = self._signals.count(TERM) > 0 or self._signals.count(INTERRUPT) > 1
            if not due or not self.tracker.spoke or hurry or self._clock.monotonic() >= limit:
                return
            self._clock.sleep(POLL_S)
