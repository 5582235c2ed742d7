"""When saves begin, and what becomes of them: all ranks after the same step, whoever saw the reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.saver import ArraySource, Header
from slurmtrain.config.job import CheckpointConfig
from slurmtrain.errors import CheckpointError
from slurmtrain.planner.interval import Seen
from slurmtrain.rundir import RunDir
from slurmtrain.train.pace import Pace
from slurmtrain.train.saving import Saves, Surroundings
from slurmtrain.train.stopping import StopFlag, heard, save_request
from tests.fakes.clock import FakeClock
from tests.fakes.saver import FakeSaver
from tests.fakes.thread_group import run_ranks


class Rank:
    """What a loop does with `Saves`, without training. `events`: (kind, step), of rank 0."""

    def __init__(self, folder, group=None, fates=None, *, behind=False, durable=None, kept=None, pace=None, **wish):
        self.group, self.clock, self.flag, self.run = group or SoloGroup(), FakeClock(), StopFlag(), RunDir(folder)
        self.saver = FakeSaver(self.group, fates, behind=behind, local=wish.get("local", False))
        self.told, self.step = [], durable or 0
        here = Surroundings(self.run, self.flag, self.group, self.clock, lambda kind, **fields: self.told.append((kind, fields)))
        paced = None if pace is None else pace(self.clock, here.tell)
        self.saves = Saves(self.saver, self, CheckpointConfig(**{"every_steps": 0, **wish}), here, durable=durable, kept=kept, pace=paced)

    def verify(self):
        """Nothing is wrong with it."""

    def header(self):
        return Header(self.step, 1, 0, self.clock.time(), {}, {})

    def source(self):
        return ArraySource([])

    def one(self, seconds=60.0):
        """A step: flags are raised before it, summed in it, acted on after it. Rank 0's watcher looks, too."""
        if self.group.rank == 0:
            self.flag.request = save_request(self.run) or self.flag.request
        self.saves.look()
        vectors = self.group.gather(self.flag.one_hot())
        sums = self.group.broadcast([sum(column) for column in zip(*vectors, strict=True)] if vectors is not None else None)
        self.clock.advance(seconds)
        self.step += 1
        self.saves.after(heard(sums), ending=False)

    def steps(self, last):
        while self.step < last:
            self.one()

    @property
    def events(self):
        return [(kind, fields.get("step")) for kind, fields in self.told]


@pytest.fixture
def folder(tmp_path):
    RunDir(tmp_path / "run").create()
    return tmp_path / "run"


def test_every_so_many_steps_and_never_a_step_twice(folder):
    rank = Rank(folder, every_steps=3)
    rank.steps(7)
    rank.saves.finish()
    rank.saves.finish()
    assert rank.saver.saved == [3, 6, 7]
    assert rank.events == [("save", 3), ("save", 6), ("save", 7)]
    assert rank.told[0][1] == {"step": 3, "seconds": 0.25, "write_s": 2.0, "bytes": 1000}


def test_what_was_loaded_is_not_saved_again(folder):
    rank = Rank(folder, durable=5, kept=5)
    rank.saves.finish()
    assert rank.saver.saved == []
    rank = Rank(folder, durable=5)
    rank.saves.finish()
    assert rank.saver.saved == [5], "it lay on the nodes' own disks"


def test_rank_0s_clock_decides_for_all(folder):
    """Its minutes are up before its third step; the others' clocks, which run faster, are not asked."""

    def body(group):
        rank = Rank(folder, group, every_minutes=2.0)
        for _ in range(6):
            rank.one(60.0 if group.rank == 0 else 600.0)
        return rank.saver.saved, rank.events

    assert run_ranks(3, body) == [([3, 6], [("save", 3), ("save", 6)]), ([3, 6], []), ([3, 6], [])]


def three_minutes(clock, tell):
    """Saves of 0.25 s, as the fake's are, on four nodes that have failed every third day for long: sqrt(2 x 0.25 x 18 h) is 180 s."""
    return Pace(nodes=4, site_rate=1 / 3, restart_s=60.0, before=Seen(10_000, 30_000.0), stalls=(), clock=clock, tell=tell)


@pytest.mark.parametrize("behind", [False, True])
def test_an_interval_that_is_worked_out_is_rank_0s_word_for_all(folder, behind):
    """Ten minutes to the first save, three from then on; one that is under way is told, and learnt from, when it has ended."""

    def body(group):
        pace = three_minutes if group.rank == 0 else None
        rank = Rank(folder, group, behind=behind, interval="auto", pace=pace)
        for _ in range(20):
            rank.one()
            rank.saver.end()
        return rank.saver.saved, rank.events

    (saved, events), *others = run_ranks(3, body)
    assert saved[:4] == [10, 13, 16, 19]
    assert events[:2] == [("save", 10), ("interval", None)]
    assert [kind for kind, _ in events].count("interval") == 1
    assert others == [(saved, []), (saved, [])]


def test_an_interval_and_minutes_whichever_comes_first(folder):
    rank = Rank(folder, interval="auto", every_minutes=5.0, pace=three_minutes)
    rank.steps(16)
    assert rank.saver.saved == [6, 9, 12, 15]


def test_time_does_not_press_while_a_save_is_under_way(folder):
    rank = Rank(folder, every_minutes=2.0, behind=True)
    rank.steps(8)
    assert rank.saver.saved == [3]
    rank.saver.end()
    rank.one()
    assert rank.saver.saved == [3, 9]


@pytest.mark.parametrize("size", [1, 3])
def test_a_failure_that_is_heard_behind_the_next_begin_costs_that_save_nothing(folder, size):
    """`begin` has settled it. Broken: all ranks give up the save under way, which is told with the error of the one before."""

    def body(group):
        rank = Rank(folder, group, {4: ["checkpoint of step 4 not saved: full"]}, behind=True, every_steps=2)
        rank.steps(9)
        return rank.saver.failed, rank.events

    first, *others = run_ranks(size, body)
    assert first == ([], [("save", 2), ("save_failed", 4), ("save", 6)])
    assert others == [([], [])] * (size - 1)


def test_a_person_asks_and_is_answered_when_that_save_has_ended(folder):
    def body(group):
        rank = Rank(folder, group, behind=True)
        rank.one()
        if group.rank == 0:
            rank.run.save_request.touch()
        group.barrier()
        rank.steps(4)
        before = rank.run.save_request.exists()
        group.barrier()
        rank.saver.end()
        rank.one()
        group.barrier()
        return rank.saver.saved, rank.events, before, rank.run.save_request.exists()

    assert run_ranks(2, body) == [([2], [("save", 2)], True, False), ([2], [], True, False)]


def test_a_request_whose_save_fails_is_answered_too(folder):
    rank = Rank(folder, fates={1: ["full"]})
    rank.run.save_request.touch()
    rank.steps(3)
    assert rank.saver.saved == [1]
    assert rank.events == [("save_failed", 1)]
    assert not rank.run.save_request.exists()


def test_an_end_answers_a_request_that_nobody_has_seen(folder):
    rank = Rank(folder)
    rank.steps(2)
    rank.run.save_request.touch()
    rank.saves.finish()
    assert rank.saver.saved == [2]
    assert not rank.run.save_request.exists()


def test_a_failed_save_costs_nothing_but_itself(folder):
    rank = Rank(folder, fates={4: ["checkpoint of step 4 not saved: full"]}, every_steps=2)
    rank.steps(6)
    assert rank.events == [("save", 2), ("save_failed", 4), ("save", 6)]
    assert rank.told[1][1] == {"step": 4, "error": "checkpoint of step 4 not saved: full", "durable": 2}
    assert rank.saves.durable == 6


@pytest.mark.parametrize("behind", [False, True])
def test_the_last_save_is_tried_twice(folder, behind):
    rank = Rank(folder, fates={3: ["full"], 4: ["full", "still full"]}, behind=behind)
    rank.steps(3)
    rank.saves.finish()
    assert rank.events == [("save_failed", 3), ("save", 3)]
    rank.steps(4)
    with pytest.raises(CheckpointError, match="still full"):
        rank.saves.finish()
    assert rank.saver.saved == [3, 3, 4, 4]
    assert rank.events[2:] == [("save_failed", 4), ("save_failed", 4)]


def test_the_last_save_waits_for_a_folder_that_comes_back(folder):
    def body(group):
        rank = Rank(folder, group, fates={4: ["gone"] * 5})
        rank.steps(4)
        group.barrier()
        if group.rank == 0:
            folder.rename(folder.with_name("away"))
            rank.clock.at(5.0, lambda: folder.with_name("away").rename(folder))
        group.barrier()
        with pytest.raises(CheckpointError, match="gone"):
            rank.saves.finish()
        return len(rank.saver.saved), rank.clock.monotonic()

    ends = run_ranks(2, body)
    assert {tries for tries, _ in ends} == {5}, "two, and one after each pause of two seconds until it was back"
    assert not folder.with_name("away").exists()


def test_a_folder_that_stays_away_is_given_up(folder):
    rank = Rank(folder, fates={4: ["gone"] * 100})
    rank.steps(4)
    folder.rename(folder.with_name("away"))
    began = rank.clock.monotonic()
    with pytest.raises(CheckpointError, match="gone"):
        rank.saves.finish(20.0)
    assert 20.0 <= rank.clock.monotonic() - began < 23.0


def test_a_save_beside_the_training_is_told_when_it_has_ended(folder):
    rank = Rank(folder, every_steps=3, behind=True)
    rank.steps(4)
    assert rank.events == []
    assert rank.saves.durable is None
    rank.saver.end()
    rank.steps(5)
    assert rank.events == [("save", 3)]
    assert rank.saves.durable == 3


@pytest.mark.parametrize("steps", [3, 4])
def test_an_end_waits_for_a_save_that_is_under_way(folder, steps):
    """And saves the state of now, unless it is that very state."""

    def body(group):
        rank = Rank(folder, group, every_steps=3, behind=True)
        rank.steps(steps)
        rank.saves.finish()
        return rank.saver.saved, rank.events, rank.saves.durable

    saved = [3] if steps == 3 else [3, 4]
    told = [("save", step) for step in saved]
    assert run_ranks(2, body) == [(saved, told, steps), (saved, [], steps)]


@pytest.mark.parametrize("broken", [0, 2])
def test_a_writer_that_breaks_on_one_rank_is_given_up_by_all(folder, broken):
    def body(group):
        rank = Rank(folder, group, every_steps=4, behind=True)
        rank.steps(5)
        if group.rank == broken:
            rank.saver.break_here(f"rank {broken}: killed")
        group.barrier()
        rank.steps(7)
        flags = rank.flag.broken
        rank.steps(8)
        rank.saves.finish()
        return SimpleNamespace(events=rank.events, failed=rank.saver.failed, saved=rank.saver.saved, flags=flags, told=rank.told)

    ranks = run_ranks(3, body)
    assert [one.failed for one in ranks] == [[f"rank {broken}: killed"]] * 3
    assert [one.saved for one in ranks] == [[4, 8]] * 3
    assert not any(one.flags for one in ranks)
    assert [one.events for one in ranks] == [[("save_failed", 4), ("save", 8)], [], []]
    assert ranks[0].told[0][1]["error"] == f"rank {broken}: killed"


def test_all_ranks_know_what_is_durable_after_waiting(folder):
    """Also where rank 0 has heard before."""

    def body(group):
        rank = Rank(folder, group, every_steps=3, behind=True)
        rank.steps(4)
        rank.saver.end()
        rank.one()
        before = rank.saves.durable
        rank.saves.settle()
        return before, rank.saves.durable, rank.saves.kept

    assert run_ranks(2, body) == [(3, 3, 3), (None, 3, 3)]


def test_every_so_many_saves_go_to_the_run_folder_and_so_do_requests_and_the_last(folder):
    rank = Rank(folder, every_steps=2, local=True, flush_every=3)
    rank.steps(7)
    rank.run.save_request.touch()
    rank.steps(15)
    rank.saves.finish()
    assert rank.saver.saved == [2, 4, 6, 8, 10, 12, 14, 15]
    assert rank.saver.shared == [6, 8, 12, 15]
    assert not rank.run.save_request.exists()
    assert [(fields["step"], fields.get("tier")) for _, fields in rank.told][:5] == [
        (2, "local"),
        (4, "local"),
        (6, None),
        (6, "local"),
        (8, None),
    ]
    assert (rank.saves.durable, rank.saves.kept) == (15, 15)


def test_attempts_that_end_early_come_to_the_run_folder_too(folder):
    """Each makes two saves, and every third belongs there."""
    shared = []
    for begun in (0, 4, 8):
        rank = Rank(folder, durable=begun, every_steps=2, local=True, flush_every=3)
        rank.steps(begun + 5)
        shared += rank.saver.shared
    assert shared == [6, 12]


def test_a_local_save_that_fails_is_told_and_nothing_else(folder):
    rank = Rank(folder, fates={2: ["n1: full"]}, every_steps=2, local=True, flush_every=2)
    rank.steps(5)
    assert [(kind, fields["step"], fields.get("tier")) for kind, fields in rank.told] == [
        ("save_failed", 2, "local"),
        ("save", 4, None),
        ("save", 4, "local"),
    ]
    assert rank.saver.failed == []


def test_it_is_prepared_and_closed(folder):
    rank = Rank(folder)
    rank.saves.prepare()
    rank.saves.close()
    assert (rank.saver.prepared, rank.saver.closed) == (1, 1)
