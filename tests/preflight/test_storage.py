"""Folders that are full, read-only, another's, out of quota, or hang: real ones, and what is said of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.preflight.checks import quota_left, scratch_folder, scratch_space, shared_folder, shared_space
from slurmtrain.preflight.gather import gather
from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.sources import clock, quota, scratch, shared
from slurmtrain.preflight.sources._writing import BYTES
from slurmtrain.shell import SystemShell
from slurmtrain.store.mounts import mount_of
from tests.preflight.mounts import ext4, mounted, run
from tests.preflight.tree import here, judged, request

MACHINE = Machine(SystemShell(), dict(os.environ), SystemClock())
SCRATCH = {"paths": {"scratch": "$FAST/scratch"}}


def look(*folders: Path) -> list[tuple[str, str]]:
    wish = request(*folders)
    return judged(shared_folder.CHECK, shared.look(MACHINE, wish), wish)


def as_nobody(deed):
    """What the deed gives in a process of another user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(writing, json.dumps(deed()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        said = json.loads(file.read())
    os.waitpid(pid, 0)
    return said


def test_a_healthy_folder_takes_a_file_and_nothing_stays_behind(tmp_path):
    one, new = tmp_path / "events", tmp_path / "checkpoints"
    one.mkdir()
    wish = request(one, new)
    seen = shared.look(MACHINE, wish)["folders"]
    assert judged(shared_folder.CHECK, {"folders": seen}, wish) == []
    status = os.statvfs(tmp_path)
    assert 0 < seen[str(one)]["free_bytes"] <= status.f_blocks * status.f_frsize
    assert 0 < seen[str(one)]["seconds"] < 60
    assert [list(folder.iterdir()) for folder in (one, new)] == [[], []]


@pytest.mark.parametrize("limit", [f"size={BYTES // 2}", "nr_inodes=1"])
def test_a_full_disk_by_bytes_and_by_files(limit):
    with mounted("-t", "tmpfs", "-o", limit, "tmpfs") as full:
        assert look(full) == [("fail", f"{full}: cannot write into it: No space left on device")]
        assert list(full.iterdir()) == []


def test_a_read_only_file_system(tmp_path):
    with mounted("--bind", tmp_path) as view:
        assert run("mount", "-o", "remount,ro,bind", view).returncode == 0
        assert look(view) == [("fail", f"{view}: cannot write into it: Read-only file system")]


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed")
def test_another_users_folder():
    with mounted("-t", "tmpfs", "-o", "mode=755", "tmpfs") as theirs:
        found = as_nobody(lambda: look(theirs))
        assert found == [["fail", f"{theirs}: cannot write into it: Permission denied"]]
        theirs.chmod(0o777)
        assert as_nobody(lambda: look(theirs)) == []


def test_a_folder_that_is_not_there_and_a_file_in_its_place(tmp_path):
    (tmp_path / "file").touch()
    assert look(tmp_path / "no" / "folder") == [("fail", f"{tmp_path}/no/folder: cannot write into it: No such file or directory")]
    assert look(tmp_path / "file") == [("fail", f"{tmp_path}/file: cannot write into it: File exists")]


def test_a_folder_that_hangs_costs_its_own_time_out_alone(tmp_path):
    with ext4(tmp_path) as frozen:
        wish = request(frozen)
        assert run("fsfreeze", "--freeze", frozen).returncode == 0
        try:
            found = gather([shared.SOURCE, clock.SOURCE], MACHINE, wish, clock=MACHINE.clock, limit_s=0.5)
        finally:
            run("fsfreeze", "--unfreeze", frozen)
        assert list(found.facts) == ["clock"]
        said, remedy = found.unknown["shared"]
        assert (said, "client on the node hangs" in remedy) == ("shared: no answer in time", True)
        assert look(frozen) == [], "and when it is there again all is well"


def test_a_folder_that_gives_back_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"something else")
    assert look(tmp_path) == [("fail", f"{tmp_path}: what was read is not what was written")]


@pytest.mark.parametrize(
    ("bytes_", "files", "found"),
    [(0, 0, 0), (1 << 20, 10, 0), (1 << 60, 10, 1), (1 << 20, 1 << 60, 1)],
)
def test_room_for_the_next_checkpoint(bytes_, files, found):
    with mounted("-t", "tmpfs", "-o", "size=4m,nr_inodes=100", "tmpfs") as small:
        wish = request(small / "checkpoints", small / "events", need_bytes=bytes_, need_files=files)
        told = judged(shared_space.CHECK, shared.look(MACHINE, wish), wish)
        assert len(told) == found
        assert all(" needed, " in line and "(on the file system)" in line for _, line in told)


class TestQuota:
    """`quota` is a program of the test that prints what the real one does (quota 4.09, -w -p): no kernel here has quotas."""

    @pytest.fixture
    def program(self, tmp_path, monkeypatch):
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        path = tmp_path / "bin" / "quota"

        def write(*lines: str) -> None:
            path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
            path.chmod(0o755)

        return write

    def told(self, folder: Path, **more):
        wish = request(folder, **more)
        return judged(quota_left.CHECK, quota.look(MACHINE, wish), wish)

    def test_of_the_user_and_of_the_group(self, tmp_path, program):
        source = mount_of(tmp_path).source
        head = "Disk quotas for user ada (uid 1000):\n  Filesystem blocks quota limit grace files quota limit grace"
        program(f'[ "$3" = -u ] && echo "{head}\n {source} 1000* 0 3000 0 5 0 100 0"', "exit 1")
        assert self.told(tmp_path, need_bytes=2000 * 1024, need_files=95) == []
        assert self.told(tmp_path, need_bytes=2000 * 1024 + 1) == [
            ("fail", f"{tmp_path}: 2.0 MiB needed, 2.0 MiB free (quota of user {os.getuid()})")
        ]
        assert self.told(tmp_path, need_files=96) == [("fail", f"{tmp_path}: 96 files needed, 95 free (quota of user {os.getuid()})")]

    def test_one_that_is_used_up_though_nobody_knows_the_need(self, tmp_path, program):
        program(f'echo " {mount_of(tmp_path).source} 3000* 0 3000 0 5 0 100 0"')
        assert [grade for grade, _ in self.told(tmp_path)] == ["fail", "fail"]

    def test_no_such_program_is_no_trouble(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert self.told(tmp_path, need_bytes=1 << 20) == []

    def test_one_that_hangs_is_said_in_time(self, tmp_path, program):
        program("exec tail -f /dev/null")
        with pytest.raises(CannotTellError, match="quota did not answer in") as caught:
            self.told(tmp_path, site={"preflight": {"timeout_s": 0.4}})
        assert 'quota = "off"' in caught.value.remedy

    def test_the_sites_own_command(self, tmp_path):
        said = {"storage": {"quota_command": "echo 1000 -"}}
        assert self.told(tmp_path, site=said, need_bytes=1000, need_files=10**9) == []
        assert [grade for grade, _ in self.told(tmp_path, site=said, need_bytes=1001)] == ["fail"]
        with pytest.raises(CannotTellError, match="told nothing of") as caught:
            self.told(tmp_path, site={"storage": {"quota_command": "echo no idea about {folder}"}})
        assert f"`echo no idea about {tmp_path}`" in caught.value.remedy

    def test_folders_on_one_file_system_are_asked_for_once(self, tmp_path):
        (tmp_path / "a").mkdir()
        wish = request(tmp_path, tmp_path / "a", tmp_path / "gone", site={"storage": {"quota_command": "echo 1 1"}})
        assert [one["folder"] for one in quota.look(MACHINE, wish)["left"]] == [str(tmp_path)]


class TestScratch:
    def told(self, fast: Path, site=None, **more):
        wish = request(site={**SCRATCH, **(site or {})}, **more)
        machine = Machine(SystemShell(), {"FAST": str(fast)}, SystemClock())
        seen = scratch.look(machine, wish)
        return [*judged(scratch_folder.CHECK, seen, wish), *judged(scratch_space.CHECK, seen, wish)]

    def test_one_that_is_there_or_can_be_made(self, tmp_path):
        assert self.told(tmp_path) == []
        assert list((tmp_path / "scratch").iterdir()) == []

    def test_a_disk_that_is_not_mounted(self, tmp_path):
        where = tmp_path / "raid"
        assert self.told(where) == [("fail", f"{where}/scratch: cannot write into it: No such file or directory")]

    def test_a_variable_that_the_node_does_not_know(self):
        with pytest.raises(CannotTellError, match=r"\$FAST is not set"):
            scratch.look(Machine(SystemShell(), {}, SystemClock()), request(site=SCRATCH))

    def test_room_for_the_site_and_for_local_checkpoints(self):
        with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs") as disk:
            assert self.told(disk, local_bytes=3 << 20) == []
            told = self.told(disk, {"preflight": {"scratch_bytes": 8 << 20}}, local_bytes=6 << 20)
            assert told == [("fail", f"{disk}/scratch: 4.0 MiB free, 8.0 MiB wanted (preflight.scratch_bytes)")]
            assert "6.0 MiB wanted (checkpoint.local)" in self.told(disk, local_bytes=6 << 20)[0][1]
            mine = disk / "scratch" / f"slurmtrain-{os.getuid()}" / "checkpoints" / "run-1"
            mine.mkdir(parents=True)
            (mine / "rank-00000.h5").write_bytes(bytes(3 << 20))
            assert self.told(disk, local_bytes=4 << 20) == [], "what old ones take becomes free"


def test_what_is_looked_at_here_can_be_told_in_json(tmp_path):
    for source in (shared, quota):
        json.dumps(source.look(here(), request(tmp_path)), allow_nan=False)
