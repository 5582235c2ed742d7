"""The doors to publishing: the machine's and the fake keep the same contract; a reader never sees a part."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slurmtrain import atomic
from slurmtrain.atomic import Disk, SystemDisk, fsync_dir, fsync_file, to_json
from tests.fakes.disk import FakeDisk

ROOT = Path(__file__).resolve().parent.parent


class DiskConformance:
    @pytest.fixture
    def disk(self) -> Disk:
        raise NotImplementedError

    def test_write_publishes_and_replaces_and_leaves_nothing_else(self, disk, tmp_path):
        disk.write(tmp_path / "a", b"old")
        disk.write(tmp_path / "a", b"new")
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"new"}

    def test_a_reader_that_holds_the_old_file_keeps_the_old_bytes(self, disk, tmp_path):
        disk.write(tmp_path / "a", b"old")
        with open(tmp_path / "a", "rb") as reader:
            disk.write(tmp_path / "a", b"new and longer")
            assert reader.read() == b"old"

    def test_one_alone_creates(self, disk, tmp_path):
        assert disk.create_exclusive(tmp_path / "owner", b"first") is True
        assert disk.create_exclusive(tmp_path / "owner", b"second") is False
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"owner": b"first"}

    def test_a_folder_is_renamed_whole(self, disk, tmp_path):
        staging = tmp_path / ".staging"
        staging.mkdir()
        (staging / "f").write_text("x")
        disk.publish_dir(staging, tmp_path / "final")
        assert [p.name for p in tmp_path.iterdir()] == ["final"]
        assert (tmp_path / "final/f").read_text() == "x"

    @pytest.mark.parametrize("taken", ["full folder", "empty folder", "file"])
    def test_a_name_that_is_taken_is_refused_and_nothing_moves(self, disk, tmp_path, taken):
        staging, final = tmp_path / "s", tmp_path / "final"
        staging.mkdir()
        if taken == "file":
            final.write_text("mine")
        else:
            final.mkdir()
            if taken == "full folder":
                (final / "g").write_text("mine")
        with pytest.raises(FileExistsError):
            disk.publish_dir(staging, final)
        assert staging.is_dir()
        assert final.exists()

    def test_append_adds_to_the_end_and_creates(self, disk, tmp_path):
        for line in (b"one\n", b"two\n", b""):
            disk.append(tmp_path / "log", line)
        assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"

    @pytest.mark.parametrize("method", ["write", "create_exclusive", "append"])
    def test_a_missing_folder_is_an_os_error_and_leaves_nothing(self, disk, tmp_path, method):
        with pytest.raises(OSError):  # noqa: PT011 which one depends on the file system
            getattr(disk, method)(tmp_path / "gone" / "a", b"x")
        assert list(tmp_path.iterdir()) == []


class TestFakeDisk(DiskConformance):
    @pytest.fixture
    def disk(self):
        return FakeDisk()

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
    def test_the_calls_that_the_test_names_fail_and_leave_nothing(self, tmp_path, code):
        disk = FakeDisk({"write": {2}, "append": None}, code)
        disk.write(tmp_path / "a", b"1")
        with pytest.raises(OSError) as caught:  # noqa: PT011
            disk.write(tmp_path / "a", b"2")
        assert (caught.value.errno, (tmp_path / "a").read_bytes()) == (code, b"1")
        disk.write(tmp_path / "a", b"3")
        for _ in range(2):
            with pytest.raises(OSError):  # noqa: PT011
                disk.append(tmp_path / "log", b"x\n")
        assert [method for method, _ in disk.calls] == ["write", "write", "write", "append", "append"]
        assert not (tmp_path / "log").exists()


class TestSystemDisk(DiskConformance):
    @pytest.fixture
    def disk(self):
        return SystemDisk()

    def test_of_many_threads_that_create_one_wins_and_its_bytes_are_there(self, disk, tmp_path):
        start, won = threading.Barrier(8), []

        def contend(number: int) -> None:
            start.wait()
            if disk.create_exclusive(tmp_path / "owner", str(number).encode()):
                won.append(number)

        run_all([lambda n=n: contend(n) for n in range(8)])
        assert len(won) == 1
        assert (tmp_path / "owner").read_text() == str(won[0])
        assert [p.name for p in tmp_path.iterdir()] == ["owner"]

    def test_threads_that_write_one_file_leave_one_of_their_versions(self, disk, tmp_path):
        versions = [bytes([65 + n]) * 100_000 for n in range(6)]
        run_all([lambda data=data: disk.write(tmp_path / "a", data) for data in versions])
        assert (tmp_path / "a").read_bytes() in versions
        assert [p.name for p in tmp_path.iterdir()] == ["a"]

    def test_without_hard_links_one_alone_still_creates(self, disk, tmp_path, monkeypatch):
        def no_links(*_args: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(atomic.os, "link", no_links)
        assert disk.create_exclusive(tmp_path / "owner", b"first") is True
        assert disk.create_exclusive(tmp_path / "owner", b"second") is False
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"owner": b"first"}

    def test_a_link_that_nfs_made_before_it_answered_is_a_win(self, disk, tmp_path, monkeypatch):
        real = os.link

        def made_twice(source: Path, target: Path) -> None:
            real(source, target)
            real(source, target)  # the repeated request finds its own link

        monkeypatch.setattr(atomic.os, "link", made_twice)
        assert disk.create_exclusive(tmp_path / "owner", b"first") is True

    def test_bytes_and_names_are_made_durable_in_the_right_order(self, disk, tmp_path, monkeypatch):
        seen = []
        fsync = os.fsync
        monkeypatch.setattr(atomic.os, "fsync", lambda fd: (seen.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
        disk.write(tmp_path / "a", b"x")
        assert len(seen) == 2
        assert seen[0].startswith(f"{tmp_path}/.a.")
        assert seen[1] == str(tmp_path)

    def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(self, disk, tmp_path, monkeypatch):
        disk.write(tmp_path / "a", b"old")

        def full(_fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(atomic.os, "fsync", full)
        with pytest.raises(OSError, match="No space") as caught:
            disk.write(tmp_path / "a", b"new")
        assert caught.value.filename == str(tmp_path / "a"), "fsync names no file; people need one"
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old"}

    def test_a_folder_in_the_way_of_a_file_leaves_no_temporary(self, disk, tmp_path):
        (tmp_path / "a").mkdir()
        with pytest.raises(OSError):  # noqa: PT011
            disk.write(tmp_path / "a", b"x")
        assert [p.name for p in tmp_path.iterdir()] == ["a"]

    def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(self, tmp_path):
        code = (
            "import resource, signal, sys; from pathlib import Path; from slurmtrain.atomic import SystemDisk\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
            "disk, log = SystemDisk(), Path(sys.argv[1]); disk.append(log, b'first line\\n')\n"
            "try:\n    disk.append(log, b'a line that is too long\\n')\n"
            "except OSError as error:\n    print(error.strerror)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "log"], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout == "No space left on device\n"
        assert (tmp_path / "log").read_bytes() == b"first line\n"


def test_json_is_readable_ordered_and_refuses_nan():
    assert to_json({"v": 1, "a": [1, None]}) == b'{\n  "v": 1,\n  "a": [\n    1,\n    null\n  ]\n}\n'
    assert json.loads(to_json({"text": "ü\n"})) == {"text": "ü\n"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"loss": float("nan")})


def test_fsync_of_what_is_not_there_is_an_os_error(tmp_path):
    (tmp_path / "f").write_text("x")
    fsync_file(tmp_path / "f")
    fsync_dir(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsync_file(tmp_path / "gone")
    with pytest.raises(NotADirectoryError):
        fsync_dir(tmp_path / "f")


def run_all(deeds) -> None:
    threads = [threading.Thread(target=deed) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
