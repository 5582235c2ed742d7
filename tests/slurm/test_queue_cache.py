"""squeue's answer shared between processes of a user."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from slurmtrain.errors import SlurmUnavailableError
from slurmtrain.slurm.queue_cache import WAIT_S, QueueCache
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk


class Slurm:
    """Counts the questions; answers with their number."""

    def __init__(self) -> None:
        self.questions = 0

    def __call__(self) -> str:
        self.questions += 1
        return f"answer {self.questions}"


@pytest.fixture
def clock():
    return FakeClock()


def test_another_process_gets_the_first_ones_answer_with_its_age(tmp_path, clock):
    slurm, first, second = Slurm(), QueueCache(tmp_path / "c", "u", clock), QueueCache(tmp_path / "c", "u", clock)
    assert first.get(10, slurm) == (0, "answer 1")
    clock.advance(7)
    assert second.get(10, slurm) == (7, "answer 1")
    clock.advance(4)
    assert second.get(10, slurm) == (0, "answer 2")
    assert first.get(10, slurm) == (0, "answer 2")


def test_users_and_clusters_do_not_share(tmp_path, clock):
    slurm = Slurm()
    assert QueueCache(tmp_path, "0:/a/slurm.conf", clock).get(10, slurm) == (0, "answer 1")
    assert QueueCache(tmp_path, "0:/b/slurm.conf", clock).get(10, slurm) == (0, "answer 2")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"t": 1}', '{"t": "x", "text": ""}'])
def test_a_damaged_file_is_no_answer(tmp_path, clock, text):
    slurm, cache = Slurm(), QueueCache(tmp_path, "u", clock)
    cache.get(10, slurm)
    (file,) = tmp_path.glob("squeue-*.json")
    file.write_text(text)
    assert QueueCache(tmp_path, "u", clock).get(10, slurm) == (0, "answer 2")


def test_an_answer_from_the_future_is_not_believed(tmp_path, clock):
    ahead = FakeClock(epoch=clock.time() + 100)
    slurm = Slurm()
    QueueCache(tmp_path, "u", ahead).get(10, slurm)
    assert QueueCache(tmp_path, "u", clock).get(10, slurm) == (0, "answer 2")


def test_the_folder_is_the_users_alone(tmp_path, clock):
    QueueCache(tmp_path / "deep/c", "u", clock).get(10, Slurm())
    assert (tmp_path / "deep/c").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("where", ["file in the way", "full disk", "no home"])
def test_where_nothing_can_be_kept_each_process_asks_for_itself(tmp_path, clock, where):
    (tmp_path / "file").write_text("")
    folder = {"file in the way": tmp_path / "file/c", "full disk": tmp_path / "c", "no home": None}[where]
    slurm, disk = Slurm(), FakeDisk({"write": None})
    cache, other = QueueCache(folder, "u", clock, disk), QueueCache(folder, "u", clock, disk)
    assert cache.get(10, slurm) == (0, "answer 1")
    assert cache.get(10, slurm) == (0, "answer 1")
    assert other.get(10, slurm) == (0, "answer 2")


def test_an_error_passes_through_and_is_not_kept(tmp_path, clock):
    def refuse() -> str:
        raise SlurmUnavailableError("no answer")

    cache = QueueCache(tmp_path, "u", clock)
    with pytest.raises(SlurmUnavailableError):
        cache.get(10, refuse)
    assert cache.get(10, Slurm()) == (0, "answer 1")


class Asking:
    """Another process in the middle of its question: it holds the lock."""

    def __init__(self, folder: Path) -> None:
        (lock,) = folder.glob("squeue-*.lock")
        self.fd = os.open(lock, os.O_RDWR)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def done(self) -> None:
        os.close(self.fd)


def test_while_another_process_asks_its_answer_is_waited_for(tmp_path, clock):
    slurm, cache, other = Slurm(), QueueCache(tmp_path, "u", clock), QueueCache(tmp_path, "u", clock)
    cache.get(10, slurm)
    clock.advance(20)
    asking = Asking(tmp_path)
    clock.at(3, lambda: other._ask(lambda: "theirs"))
    age_s, text = cache.get(10, slurm)
    asking.done()
    assert text == "theirs"
    assert age_s < 1
    assert slurm.questions == 1


def test_one_who_never_gets_an_answer_is_not_waited_for_for_ever(tmp_path, clock):
    slurm, cache = Slurm(), QueueCache(tmp_path, "u", clock)
    cache.get(10, slurm)
    clock.advance(20)
    asking, start = Asking(tmp_path), clock.monotonic()
    assert cache.get(10, slurm)[1] == "answer 2"
    asking.done()
    assert clock.monotonic() - start == pytest.approx(WAIT_S, abs=1)


def test_many_threads_with_a_cache_each_ask_once(tmp_path, clock):
    slurm, seen, start = Slurm(), [], threading.Barrier(6)

    def ask() -> None:
        cache = QueueCache(tmp_path, "u", clock)
        start.wait()
        seen.append(cache.get(1000, slurm)[1])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == ["answer 1"] * 6
