"""The doors to system calls: the machine's and the fake keep the same contract; the fake's faults are those that its docstring names."""

from __future__ import annotations

import errno
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.syscalls import SystemCalls, pwrite_all, remove_tree, write_new
from tests.fakes.syscalls import Cut, FakeSyscalls, Refusal, after_power_failure, assert_nothing_bypassed, tree

ROOT = Path(__file__).resolve().parent.parent


class SyscallsConformance:
    @pytest.fixture
    def calls(self, tmp_path):
        raise NotImplementedError

    def test_folders_are_made_and_removed_one_at_a_time(self, calls, tmp_path):
        calls.mkdir(tmp_path / "a")
        with pytest.raises(FileExistsError):
            calls.mkdir(tmp_path / "a")
        with pytest.raises(FileNotFoundError):
            calls.mkdir(tmp_path / "gone" / "b")
        calls.mkdir(tmp_path / "a" / "b")
        with pytest.raises(OSError) as caught:  # noqa: PT011
            calls.rmdir(tmp_path / "a")
        assert caught.value.errno == errno.ENOTEMPTY
        calls.rmdir(tmp_path / "a" / "b")
        calls.rmdir(tmp_path / "a")
        assert tree(tmp_path) == {}

    def test_a_file_is_made_where_there_is_none_and_bytes_lie_where_they_were_written(self, calls, tmp_path):
        fd = calls.create(tmp_path / "f")
        with pytest.raises(FileExistsError):
            calls.create(tmp_path / "f")
        assert calls.pwrite(fd, memoryview(b"world"), 6) == 5
        assert calls.pwrite(fd, memoryview(b"hello"), 0) == 5
        calls.settle(fd, 0, 5)
        calls.fsync(fd)
        calls.close(fd)
        assert tree(tmp_path) == {"f": b"hello\0world"}
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    def test_elements_wider_than_a_byte_are_written_as_bytes(self, calls, tmp_path):
        fd = calls.create(tmp_path / "f")
        pwrite_all(calls, fd, memoryview(b"\1\0\0\0\2\0\0\0").cast("I").cast("B"), 0)
        calls.close(fd)
        assert tree(tmp_path) == {"f": b"\1\0\0\0\2\0\0\0"}

    def test_a_rename_takes_the_place_of_a_file_and_not_of_a_full_folder(self, calls, tmp_path):
        write_new(calls, tmp_path / "new", b"new")
        write_new(calls, tmp_path / "old", b"old")
        calls.rename(tmp_path / "new", tmp_path / "old")
        assert tree(tmp_path) == {"old": b"new"}
        for name in ("one", "two"):
            calls.mkdir(tmp_path / name)
            write_new(calls, tmp_path / name / "f", name.encode())
        with pytest.raises(OSError):  # noqa: PT011 which one depends on the file system
            calls.rename(tmp_path / "one", tmp_path / "two")
        with pytest.raises(FileNotFoundError):
            calls.rename(tmp_path / "gone", tmp_path / "x")
        assert tree(tmp_path) == {"old": b"new", "one": None, "one/f": b"one", "two": None, "two/f": b"two"}

    def test_a_link_is_a_second_name_and_takes_no_place(self, calls, tmp_path):
        write_new(calls, tmp_path / "a", b"x")
        calls.link(tmp_path / "a", tmp_path / "b")
        with pytest.raises(FileExistsError):
            calls.link(tmp_path / "a", tmp_path / "b")
        calls.unlink(tmp_path / "a")
        assert tree(tmp_path) == {"b": b"x"}

    def test_names_are_made_durable_in_folders_alone(self, calls, tmp_path):
        write_new(calls, tmp_path / "f", b"")
        calls.fsync_dir(tmp_path)
        with pytest.raises(NotADirectoryError):
            calls.fsync_dir(tmp_path / "f")
        with pytest.raises(FileNotFoundError):
            calls.fsync_dir(tmp_path / "gone")

    def test_a_whole_tree_is_removed_and_links_in_it_are_not_followed(self, calls, tmp_path):
        (tmp_path / "keep").mkdir()
        (tmp_path / "keep/f").write_text("mine")
        (tmp_path / "t/a/b").mkdir(parents=True)
        (tmp_path / "t/a/b/f").write_text("x")
        (tmp_path / "t/link").symlink_to(tmp_path / "keep")
        (tmp_path / "t/lost").symlink_to(tmp_path / "nowhere")
        remove_tree(calls, tmp_path / "t")
        remove_tree(calls, tmp_path / "t")
        assert tree(tmp_path) == {"keep": None, "keep/f": b"mine"}

    def test_what_another_removes_meanwhile_is_no_error(self, calls, tmp_path, monkeypatch):
        (tmp_path / "t").mkdir()
        (tmp_path / "t/f").write_text("x")
        unlink = type(calls).unlink

        def both(self, path):
            path.unlink()
            path.parent.rmdir()
            unlink(self, path)

        monkeypatch.setattr(type(calls), "unlink", both)
        remove_tree(calls, tmp_path / "t")
        assert tree(tmp_path) == {}


class TestSystemCalls(SyscallsConformance):
    @pytest.fixture
    def calls(self, tmp_path):
        return SystemCalls()

    def test_a_hint_that_the_kernel_refuses_is_no_error(self, calls):
        read, write = os.pipe()
        calls.settle(write, 0, 1)
        os.close(read)
        os.close(write)


class TestFakeSyscalls(SyscallsConformance):
    @pytest.fixture
    def calls(self, tmp_path):
        return FakeSyscalls(tmp_path)

    def test_the_log_says_what_the_tree_is(self, tmp_path):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub/was").write_bytes(b"was")
        calls = FakeSyscalls(tmp_path)
        deeds(calls, tmp_path)
        assert_nothing_bypassed(calls.log, tmp_path)
        (tmp_path / "sub/more").write_bytes(b"")
        with pytest.raises(AssertionError, match=r"behind the fake's back: \['sub/more'\]"):
            assert_nothing_bypassed(calls.log, tmp_path)

    def test_a_cut_does_what_came_before_and_nothing_after(self, tmp_path, monkeypatch):
        monkeypatch.setattr("slurmtrain.atomic.secrets.token_hex", lambda _: "0")
        whole = FakeSyscalls(tmp_path / "whole")
        (tmp_path / "whole").mkdir()
        deeds(whole, tmp_path / "whole")
        for number in range(1, whole.count + 1):
            root = tmp_path / str(number)
            root.mkdir()
            calls = FakeSyscalls(root, cut_at=number)
            with pytest.raises(Cut):
                deeds(calls, root)
            assert calls.asked[: number - 1] == [(name, root / p.relative_to(tmp_path / "whole")) for name, p in whole.asked[: number - 1]]
            assert calls.count == number
            for _ in range(2):
                with pytest.raises(Cut):
                    calls.mkdir(root / "after")
            assert [vars(a) for a in calls.log.calls] == [vars(a) for a in whole.log.until(number - 1).calls]
            assert_nothing_bypassed(calls.log, root)

    def test_a_torn_write_does_half(self, tmp_path):
        calls = FakeSyscalls(tmp_path, cut_at=2, torn=True)
        with pytest.raises(Cut):
            write_new(calls, tmp_path / "f", b"12345678")
        assert tree(tmp_path) == {"f": b"1234"}
        assert_nothing_bypassed(calls.log, tmp_path)

    def test_nothing_stays_open_after_a_cut(self, tmp_path):
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(Cut):
            write_new(FakeSyscalls(tmp_path, cut_at=3), tmp_path / "f", b"x")
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    def test_a_cut_ends_other_threads_too(self, tmp_path):
        calls, met = FakeSyscalls(tmp_path, cut_at=1), []

        def thread() -> None:
            try:
                calls.mkdir(tmp_path / "b")
            except Cut:
                met.append("cut")

        with pytest.raises(Cut):
            calls.mkdir(tmp_path / "a")
        other = threading.Thread(target=thread)
        other.start()
        other.join(10)
        assert (met, tree(tmp_path)) == (["cut"], {})

    @pytest.mark.parametrize("torn", [False, True])
    def test_a_process_of_its_own_is_killed(self, tmp_path, torn):
        code = (
            "import sys; from pathlib import Path; from slurmtrain.syscalls import write_new\n"
            "from tests.fakes.syscalls import FakeSyscalls\n"
            f"write_new(FakeSyscalls(cut_at=2, torn={torn}, kill=True), Path(sys.argv[1]) / 'f', b'1234')"
        )
        done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=False)
        assert (done.returncode, tree(tmp_path)) == (-9, {"f": b"12" if torn else b""})

    def test_refusals_come_when_they_are_asked_for(self, tmp_path):
        twice = Refusal(errno.EIO, at=2, times=2, calls=("mkdir",))
        calls = FakeSyscalls(tmp_path, refusals=[twice, Refusal(errno.EROFS, path="sealed", times=None)])
        said = []
        for name in ("a", "b", "c", "d", "sealed", "sealed"):
            try:
                calls.mkdir(tmp_path / name)
            except OSError as error:
                said.append(error.errno)
            else:
                said.append(0)
        assert said == [0, errno.EIO, errno.EIO, 0, errno.EROFS, errno.EROFS]
        assert sorted(tree(tmp_path)) == ["a", "d"]
        assert calls.count == 6

    def test_a_close_that_is_refused_has_closed(self, tmp_path):
        calls = FakeSyscalls(tmp_path, refusals=[Refusal(errno.EDQUOT, calls=("close",))])
        fd = calls.create(tmp_path / "f")
        with pytest.raises(OSError, match="quota"):
            calls.close(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    @pytest.mark.parametrize("most", [None, 7])
    def test_a_disk_that_fills_takes_what_fits_and_has_room_again_when_files_go(self, tmp_path, most):
        calls = FakeSyscalls(tmp_path, room=100, full=errno.EDQUOT, most=most)
        write_new(calls, tmp_path / "a", bytes(60))
        with pytest.raises(OSError) as caught:  # noqa: PT011
            write_new(calls, tmp_path / "b", bytes(60))
        assert (caught.value.errno, (tmp_path / "b").stat().st_size) == (errno.EDQUOT, 40)
        calls.unlink(tmp_path / "b")
        calls.link(tmp_path / "a", tmp_path / "other")
        calls.unlink(tmp_path / "other")
        write_new(calls, tmp_path / "c", bytes(30))
        calls.rename(tmp_path / "c", tmp_path / "a")
        write_new(calls, tmp_path / "d", bytes(70))
        with pytest.raises(OSError, match="quota"):
            write_new(calls, tmp_path / "e", b"x")

    def test_a_write_may_take_many_calls(self, tmp_path):
        calls = FakeSyscalls(tmp_path, most=3)
        write_new(calls, tmp_path / "f", b"12345678")
        assert ([name for name, _ in calls.asked].count("pwrite"), tree(tmp_path)) == (3, {"f": b"12345678"})

    def test_it_travels_to_another_process(self, tmp_path):
        calls = pickle.loads(pickle.dumps(FakeSyscalls(tmp_path, cut_at=2, room=5)))
        calls.mkdir(tmp_path / "a")
        with pytest.raises(Cut):
            calls.mkdir(tmp_path / "b")


def deeds(calls, root) -> None:
    """A bit of everything."""
    calls.mkdir(root / "d")
    SystemDisk(calls).write(root / "d" / "file", b"first version")
    SystemDisk(calls).write(root / "d" / "file", b"second")
    SystemDisk(calls).create_exclusive(root / "d" / "once", b"mine")
    calls.fsync_dir(root)
    write_new(calls, root / "d" / "loose", b"never synced by name")
    calls.rename(root / "d", root / "e")
    remove_tree(calls, root / "e")


class TestPowerFailure:
    """Outcomes over many throws of the dice, against what POSIX promises for these calls."""

    def outcomes(self, log, root, tmp_path, throws=300):
        found = []
        for seed in range(throws):
            target = tmp_path / f"after-{len(list(tmp_path.iterdir()))}"
            after_power_failure(log, root, target, random.Random(seed))
            found.append(tree(target))
        return found

    @pytest.fixture
    def root(self, tmp_path):
        (tmp_path / "root").mkdir()
        return tmp_path / "root"

    def test_names_and_bytes_without_a_sync_may_be_there_or_not(self, root, tmp_path):
        calls = FakeSyscalls(root)
        fd = calls.create(root / "f")
        calls.pwrite(fd, memoryview(b"12345678"), 0)
        found = self.outcomes(calls.log, root, tmp_path)
        kinds = {one.get("f", "gone") for one in found}
        assert {"gone", b"", b"12345678", bytes(8)} <= kinds
        assert any(isinstance(k, bytes) and k not in {b"", b"12345678", bytes(8)} for k in kinds), "torn"

    def test_bytes_that_were_synced_are_there_if_their_name_is(self, root, tmp_path):
        calls = FakeSyscalls(root)
        write_new(calls, root / "f", b"12345678")
        assert {one.get("f", "gone") for one in self.outcomes(calls.log, root, tmp_path)} == {"gone", b"12345678"}
        calls.fsync_dir(root)
        assert {one.get("f", "gone") for one in self.outcomes(calls.log, root, tmp_path)} == {b"12345678"}

    def test_a_published_file_is_the_old_or_the_new_and_after_its_return_the_new(self, root, tmp_path):
        (root / "f").write_bytes(b"old")
        calls = FakeSyscalls(root)
        SystemDisk(calls).write(root / "f", b"new")
        seen = {one["f"] for n in range(calls.count) for one in self.outcomes(calls.log.until(n), root, tmp_path, 60)}
        assert seen == {b"old", b"new"}
        assert {one["f"] for one in self.outcomes(calls.log, root, tmp_path)} == {b"new"}

    def test_a_rename_without_a_sync_of_the_file_may_show_junk(self, root, tmp_path):
        """The mistake that the model is there to find."""
        (root / "f").write_bytes(b"old")
        calls = FakeSyscalls(root)
        fd = calls.create(root / "t")
        calls.pwrite(fd, memoryview(b"new"), 0)
        calls.close(fd)
        calls.rename(root / "t", root / "f")
        calls.fsync_dir(root)
        assert {b"", b"new", bytes(3)} <= {one["f"] for one in self.outcomes(calls.log, root, tmp_path)}

    def test_files_in_a_folder_that_was_renamed_need_its_own_sync(self, root, tmp_path):
        (root / "was").mkdir()
        (root / "was/f").write_bytes(b"1")
        calls = FakeSyscalls(root)
        write_new(calls, root / "was" / "g", b"2")
        calls.rename(root / "was", root / "is")
        calls.fsync_dir(root)
        assert {tuple(one) for one in self.outcomes(calls.log, root, tmp_path)} == {("is", "is/f"), ("is", "is/f", "is/g")}

    def test_a_tree_on_its_way_out_may_be_there_in_any_part(self, root, tmp_path):
        (root / "t").mkdir()
        for name in "ab":
            (root / "t" / name).write_bytes(name.encode())
        calls = FakeSyscalls(root)
        remove_tree(calls, root / "t")
        left = {tuple(one) for one in self.outcomes(calls.log, root, tmp_path)}
        assert left == {(), ("t",), ("t", "t/a"), ("t", "t/b"), ("t", "t/a", "t/b")}
