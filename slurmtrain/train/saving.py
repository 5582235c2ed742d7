"""When a run saves, and what becomes of its saves: joins the loop with a `Saver`.

Steps are counted by all ranks alike. Time, and a person's SAVE file, are rank 0's to see; its word rides in the step's reduction
(`stopping`), and so does a rank's word that its part of a save has failed. So all ranks begin, and give up, after the same step.

A failed save costs nothing but itself: it is told, the run goes on with the checkpoints that it has, and saves again when that is due.
The last one, before an end, must succeed: it is tried twice, and while the run's folder is gone again and again for some minutes, for
file systems come back.

Where the nodes' own disks take the saves (`checkpoint.local`), every `flush_every`-th goes to the run folder as well; so does one that a
person asks for. The last one goes there alone, for those disks may be gone with the job, and there is no time to lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from slurmtrain.checkpoint.group import Group
from slurmtrain.checkpoint.saver import Header, Outcome, Saver, Source
from slurmtrain.clock import Clock
from slurmtrain.config.job import CheckpointConfig
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.train.pace import Pace
from slurmtrain.train.stopping import Heard, StopFlag, answer_request, save_request

LAST_TRIES = 2
"""Of the save before an end."""
PATIENCE_S, STOP_PATIENCE_S = 300.0, 20.0
"""How long the run's folder may be gone at the end of the run, and at a stop, which somebody waits for."""
_PAUSE_S = 2.0


class State(Protocol):
    """What is saved, as it is now."""

    @property
    def step(self) -> int: ...

    def verify(self) -> None:
        """All ranks: raise, all alike, where it is not to be saved."""

    def header(self) -> Header: ...

    def source(self) -> Source: ...


@dataclass(frozen=True)
class Surroundings:
    """Of a rank. `tell`: emits an event, on rank 0 alone; `phase`: times what runs inside it."""

    run: RunDir
    flag: StopFlag
    group: Group
    clock: Clock
    tell: Callable[..., None]
    phase: Callable[[str], AbstractContextManager[Any]] = nullcontext

    @property
    def first(self) -> bool:
        return self.group.rank == 0


class Saves:
    """`durable`: the newest step that is known to be saved, in any tier; `kept`: in the run folder (rank 0 knows first). `pace`: rank 0's,
    where the interval is worked out as the run goes.

    All methods but `look` are called by all ranks.
    """

    def __init__(
        self,
        saver: Saver,
        state: State,
        wish: CheckpointConfig,
        here: Surroundings,
        *,
        durable: int | None,
        kept: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._saver, self._state, self._wish, self._here, self._pace = saver, state, wish, here, pace
        self.durable, self.kept = durable, kept
        self._since = here.clock.monotonic()
        self._unflushed = 0
        self._begun: tuple[int, bool] | None = None
        """Step of the last save, and whether it goes to the run folder."""
        self._under_way = False
        self._requests: dict[int, int] = {}
        """Step of a save to the SAVE file that it answers."""
        self._why = ""
        self._told: set[int] = set()
        """Steps whose failure was told: that of one save is told once."""

    def prepare(self) -> None:
        """Before the first step."""
        self._saver.prepare(self._state.source())

    def look(self) -> None:
        """Before a step, at once: hear what has ended, and raise this rank's flags."""
        here = self._here
        for outcome in self._saver.poll():
            if self._breaks(outcome):
                here.flag.broken, self._why = True, outcome.error
            if here.first:
                self._ended(outcome)
        if here.first:
            here.flag.due = self._time_is_up()

    def after(self, heard: Heard, *, ending: bool) -> None:
        """After a step, when all ranks have heard the same: give up what is broken, save where that is due. `ending`: `finish` follows."""
        if heard.broken:
            self._give_up()
        step, every = self._state.step, self._wish.every_steps
        if not ending and (heard.due or heard.request or (every and step % every == 0)):
            self._begin(shared=heard.request or self._to_run_folder(step))

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Before an end: what is under way ends, and the state is saved unless it is. Raises CheckpointError where it cannot be."""
        self.settle()
        step, tries, until = self._state.step, 0, self._here.clock.monotonic() + patience_s
        while self.kept != step:
            if tries >= LAST_TRIES and not self._wait_for_folder(until):
                raise CheckpointError(self._why or f"checkpoint of step {step} not saved")
            tries += 1
            self._begin(shared=True, local=tries > 1)
            self.settle()
        if self._here.first and (request := save_request(self._here.run)) is not None:
            answer_request(self._here.run, request)

    def _wait_for_folder(self, until: float) -> bool:
        """Whether to try once more after a pause: the run's folder is gone, and there is time. Rank 0 looks, for all."""
        here = self._here
        gone = here.first and here.clock.monotonic() < until and not here.run.path.is_dir()
        if not here.group.broadcast(gone):
            return False
        here.clock.sleep(_PAUSE_S)
        return True

    def settle(self) -> None:
        """Let what is under way end. Then all ranks know the same `durable` and `kept`."""
        with self._here.phase("checkpoint"):
            self._all_ended(self._saver.wait())
        self.durable, self.kept = self._here.group.broadcast((self.durable, self.kept))

    def went_back(self, step: int | None) -> None:
        """The run has gone back to the checkpoint of this step (None: another run's), in the run folder; nothing is under way."""
        self.durable = self.kept = step
        self._begun, self._unflushed, self._since = None, 0, self._here.clock.monotonic()
        self._told.clear()
        if self._pace is not None:
            self._pace.saved()

    def close(self) -> None:
        self._saver.close()

    def _breaks(self, outcome: Outcome) -> bool:
        """Whether the others must hear of it: that of a save before the last one was settled when that began."""
        under_way = self._begun is not None and self._begun[0] == outcome.step
        return under_way and not outcome.ok and outcome.tier == "shared" and outcome.step not in self._told

    def _time_is_up(self) -> bool:
        """A save that is under way is waited for: its successor would only stand behind it."""
        minutes, now = self._wish.every_minutes, self._here.clock.monotonic()
        paced = self._pace is not None and self._pace.due()
        return not self._under_way and (paced or (minutes is not None and now - self._since >= 60 * minutes))

    def _to_run_folder(self, step: int) -> bool:
        """By the step first: attempts that end before their `flush_every`-th save must get there, too."""
        wish = self._wish
        every = wish.every_steps * wish.flush_every
        return not wish.local or (every > 0 and step % every == 0) or self._unflushed + 1 >= wish.flush_every

    def _begin(self, *, shared: bool, local: bool = True) -> None:
        here, step = self._here, self._state.step
        self._state.verify()
        if here.first and here.flag.requested and shared:
            assert here.flag.request is not None
            here.flag.served = self._requests[step] = here.flag.request
        self._told.discard(step)
        if self._pace is not None:
            self._pace.saving()
        with here.phase("checkpoint"):
            outcome = self._saver.begin(self._state.header(), self._state.source(), shared=shared, local=local)
        self._begun, self._under_way, self._since = (step, shared), True, here.clock.monotonic()
        self._unflushed = 0 if shared else self._unflushed + 1
        if self._pace is not None:
            self._pace.saved()
        self._all_ended([] if outcome is None else [outcome])

    def _all_ended(self, outcomes: Iterable[Outcome]) -> None:
        """What all ranks hear alike, after which no failure of before is left."""
        self._here.flag.broken = False
        for outcome in outcomes:
            self._ended(outcome)

    def _ended(self, outcome: Outcome) -> None:
        step, tier = outcome.step, outcome.tier
        if self._begun in {(step, True), (step, False)} and (tier == "shared" or self._begun == (step, False)):
            self._under_way = False
        where = {} if tier == "shared" else {"tier": tier}
        if not outcome.ok:
            self._failed(step, outcome.error, **where)
            return
        self.durable = max(step, -1 if self.durable is None else self.durable)
        if tier == "shared":
            self.kept = max(step, -1 if self.kept is None else self.kept)
        notes = {"notes": list(outcome.notes)} if outcome.notes else {}
        figures = {"seconds": outcome.stall_s, "write_s": outcome.write_s, "bytes": outcome.bytes}
        self._tell("save", step=step, **figures, **where, **notes)
        if self._pace is not None:
            self._pace.learn(step, outcome.stall_s)
        if tier == "shared":
            self._answer(step)

    def _failed(self, step: int, error: str, **where: str) -> None:
        if where:
            self._tell("save_failed", step=step, error=error, durable=self.durable, **where)
            return
        self._why = error
        if step not in self._told:
            self._told.add(step)
            self._tell("save_failed", step=step, error=error, durable=self.durable)
        self._answer(step)

    def _give_up(self) -> None:
        """Some rank's part has failed: all hear why, and leave that save."""
        group = self._here.group
        reasons = group.gather(self._why if self._here.flag.broken else "")
        why = group.broadcast(next((one for one in reasons if one), "a writer has failed") if reasons is not None else None)
        self._saver.fail(why)
        self._here.flag.broken, self._under_way = False, False
        if self._begun is not None:
            self._failed(self._begun[0], why)

    def _answer(self, step: int) -> None:
        request = self._requests.pop(step, None)
        if request is not None:
            answer_request(self._here.run, request)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._here.first:
            self._here.tell(kind, **fields)
