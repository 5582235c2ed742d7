"""Room for a checkpoint: what disk and quotas say is understood; what cannot be asked is no shortage."""

from __future__ import annotations

import os

import pytest

from slurmtrain.config.site import SiteStorage
from slurmtrain.store.mounts import Mount, mount_of
from slurmtrain.store.space import Need, shortage
from slurmtrain.store.striping import stripe
from tests.fakes.shell import FakeShell, Said

GB = 10**9
UID, MINE = str(os.getuid()), ("lfs", "quota", "-q", "-u", str(os.getuid()))


def table(tmp_path, *mounts):
    """A table of mounts as the kernel writes it, in which a folder of this test lies where the last line says."""
    path = tmp_path / "mountinfo"
    lines = ["21 1 254:1 / / rw,relatime - ext4 /dev/vda rw"]
    lines += [f"{30 + i} 21 0:{i} / {point} rw,noatime shared:{i} - {kind} {source} rw" for i, (point, kind, source) in enumerate(mounts)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "fs" / "run"
    folder.mkdir(parents=True)
    return folder


def on(tmp_path, kind, source):
    return table(tmp_path, (tmp_path / "fs", kind, source))


def asked(folder, need, shell, mounts, **site):
    return shortage(folder, need, shell=shell, site=SiteStorage(**site), mounts=mounts)


class TestMounts:
    def test_the_longest_point_holds_a_folder_and_of_two_there_the_later(self, tmp_path, folder):
        point = tmp_path / "fs"
        where = table(tmp_path, (point, "nfs4", "old:/x"), (point, "lustre", "10.0.0.1@tcp:/fs"), (f"{point}2", "xfs", "/dev/b"))
        assert mount_of(folder, where) == Mount(point, "lustre", "10.0.0.1@tcp:/fs")
        assert mount_of(tmp_path, where).kind == "ext4"
        lines = where.read_text().splitlines()
        where.write_text("\n".join([*lines[1:], lines[0]]))
        assert mount_of(folder, where).kind == "lustre", "whatever their order"

    def test_links_are_followed_and_names_may_hold_spaces(self, tmp_path):
        (tmp_path / "my disk").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "my disk")
        where = table(tmp_path, (str(tmp_path / "my disk").replace(" ", "\\040"), "beegfs", "beegfs_nodev"))
        assert mount_of(tmp_path / "link", where) == Mount(tmp_path / "my disk", "beegfs", "beegfs_nodev")

    def test_no_table_and_lines_that_are_none_are_no_error(self, tmp_path, folder):
        assert mount_of(folder, tmp_path / "none") is None
        (tmp_path / "junk").write_text("\n1 2 3\na b c d e f - x\n")
        assert mount_of(folder, tmp_path / "junk") is None

    def test_this_machine_has_a_table(self, tmp_path):
        found = mount_of(tmp_path)
        assert found is not None
        assert tmp_path.is_relative_to(found.point)
        assert found.point.stat().st_dev == tmp_path.stat().st_dev


class TestDisk:
    def test_what_the_file_system_has_free_is_enough_or_not(self, tmp_path, folder):
        status, where = os.statvfs(folder), on(tmp_path, "xfs", "/dev/b")
        free = status.f_bavail * status.f_frsize
        assert asked(folder, Need(free // 2, 10), FakeShell(), where) is None
        told = asked(folder, Need(free * 4), FakeShell(), where)
        assert told.startswith(f"{folder}: ")
        assert " needed, " in told
        assert told.endswith(" free (on the file system)")
        if status.f_files:
            assert " files needed, " in asked(folder, Need(1, 2**62), FakeShell(), where)

    def test_a_file_system_that_counts_no_files_has_no_bound(self, folder, monkeypatch):
        status = os.statvfs_result((4096, 4096, 100, 100, 100, 0, 0, 0, 0, 255))
        monkeypatch.setattr("slurmtrain.store.space.os.statvfs", lambda _: status)
        site = SiteStorage(quota="off")
        assert shortage(folder, Need(409_600, 10**9), shell=FakeShell(), site=site) is None
        assert (
            shortage(folder, Need(409_601), shell=FakeShell(), site=site)
            == f"{folder}: 400.0 KiB needed, 400.0 KiB free (on the file system)"
        )

    def test_a_folder_that_is_gone_is_no_shortage(self, tmp_path):
        assert shortage(tmp_path / "gone", Need(2**70), shell=FakeShell(), site=SiteStorage()) is None


def lustre(*numbers, name="/fs"):
    return "     {} {}\n".format(name, " ".join(map(str, numbers)))


class TestLustre:
    """Answers as `lfs quota -q` prints them: KiB used, soft, hard, grace, files used, soft, hard, grace."""

    @pytest.fixture
    def where(self, tmp_path):
        return on(tmp_path, "lustre", "10.0.0.1@tcp:/fs")

    @pytest.mark.parametrize(
        "answer, need, told",
        [
            (lustre(1000, 0, 0, "-", 5, 0, 0, "-"), Need(GB, 10**5), None),  # no limits
            (lustre(1000, 0, 3000, "-", 5, 0, 100, "-"), Need(2000 * 1024, 95), None),
            (lustre(1000, 0, 3000, "-", 5, 0, 100, "-"), Need(2000 * 1024 + 1, 1), "2.0 MiB needed, 2.0 MiB free"),
            (lustre(1000, 0, 3000, "-", 5, 0, 100, "-"), Need(1, 96), "96 files needed, 95 free"),
            (lustre("3001*", 0, 3000, "-", 5, 0, 100, "-"), Need(1, 1), "1 B needed, 0 B free"),
            (lustre("[1000]", 0, "[3000]", "-", 5, 0, 100, "-"), Need(GB, 1), "953.7 MiB needed, 2.0 MiB free"),
            (lustre("1000*", 500, 0, "6d23h", 5, 0, 0, "-"), Need(GB, 1), None),  # a soft limit may be passed
            ("/very/long/name/of/a/file/system\n" + lustre(1000, 0, 3000, "-", 5, 0, 100, "-", name=""), Need(GB, 1), "953.7 MiB needed"),
            ("", Need(GB, 1), None),
            ("lfs quota: cannot resolve id", Need(GB, 1), None),
            (lustre("none"), Need(GB, 1), None),
            (lustre(1, 2), Need(GB, 1), None),
        ],
    )
    def test_the_users_quota(self, folder, where, answer, need, told):
        found = asked(folder, need, FakeShell({MINE: answer}), where)
        if told is None:
            assert found is None
        else:
            assert found.startswith(f"{folder}: {told}")
            assert found.endswith(f"(Lustre's quota of user {UID})")

    def test_group_and_project_count_too(self, tmp_path, folder, where):
        gid = folder.stat().st_gid
        shell = FakeShell(
            {
                MINE: lustre(0, 0, 0, "-", 0, 0, 0, "-"),
                ("lfs", "quota", "-q", "-g", str(gid)): lustre(0, 0, 0, "-", 0, 0, 0, "-"),
                ("lfs", "project", "-d"): f" 1042 P {folder}\n",
                ("lfs", "quota", "-q", "-p", "1042"): lustre(0, 0, 10, "-", 0, 0, 0, "-"),
            }
        )
        assert asked(folder, Need(GB), shell, where).endswith("(Lustre's quota of project 1042)")
        assert {call.argv[-1] for call in shell.asked("lfs", "quota")} == {str(tmp_path / "fs")}
        shell.answers["lfs", "project", "-d"] = f"    0 - {folder}\n"
        assert asked(folder, Need(GB), shell, where) is None
        shell.answers["lfs", "quota", "-q", "-g", str(gid)] = lustre(0, 0, 10, "-", 0, 0, 0, "-")
        assert asked(folder, Need(GB), shell, where).endswith(f"(Lustre's quota of group {gid})")

    def test_no_lfs_or_one_that_hangs_is_no_shortage(self, folder, where):
        assert asked(folder, Need(GB), FakeShell(), where) is None
        assert asked(folder, Need(GB), FakeShell({("lfs",): Said(seconds=1e6)}), where) is None

    def test_a_site_may_switch_it_off(self, folder, where):
        shell = FakeShell({("lfs",): lustre(0, 0, 1, "-", 0, 0, 1, "-")})
        assert asked(folder, Need(GB), shell, where) is not None
        assert asked(folder, Need(GB), shell, where, quota="off") is None


GPFS = (
    "mmlsquota::HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:blockUsage:blockQuota:blockLimit:blockInDoubt:"
    "blockGrace:filesUsage:filesQuota:filesLimit:filesInDoubt:filesGrace:remarks:quota:defQuota:fid:filesetname:\n"
)


class TestGpfs:
    @pytest.fixture
    def where(self, tmp_path):
        return on(tmp_path, "gpfs", "/dev/gpfs0")

    def row(self, who, used, limit, files, most, *, device="gpfs0"):
        kind, name = who.split()
        return f"mmlsquota::0:1:::{device}:{kind}:77:{name}:{used}:0:{limit}:0:none:{files}:0:{most}:0:none:e:on:off:::\n"

    def test_each_row_of_the_file_system_counts_by_its_names(self, folder, where):
        answer = GPFS + self.row("USR ada", 100, 0, 5, 0) + self.row("GRP ml", 1000, 3000, 5, 100)
        answer += self.row("USR ada", 0, 1, 0, 1, device="other")
        shell = FakeShell({("mmlsquota", "-Y", "gpfs0"): answer})
        assert asked(folder, Need(2000 * 1024, 95), shell, where) is None
        assert asked(folder, Need(2000 * 1024 + 1), shell, where) == f"{folder}: 2.0 MiB needed, 2.0 MiB free (GPFS's quota of GRP ml)"
        assert asked(folder, Need(1, 96), shell, where) == f"{folder}: 96 files needed, 95 free (GPFS's quota of GRP ml)"

    def test_the_fileset_of_the_folder_counts_too(self, folder, where):
        shell = FakeShell(
            {
                (
                    "mmlsattr",
                    "-L",
                    str(folder),
                ): f"file name:            {folder}\nmetadata replication: 1 max 2\nfileset name:         proj1\n",
                ("mmlsquota", "-Y", "gpfs0"): GPFS,
                ("mmlsquota", "-Y", "-j", "proj1", "gpfs0"): GPFS + self.row("FILESET proj1", 0, 10, 0, 0),
            }
        )
        assert asked(folder, Need(GB), shell, where).endswith("(GPFS's quota of FILESET proj1)")

    @pytest.mark.parametrize("answer", ["", "mmlsquota: no quota\n", GPFS, GPFS + "mmlsquota::0:1:::gpfs0:USR:77:ada:many:0:few:0\n"])
    def test_what_is_not_understood_is_no_shortage(self, folder, where, answer):
        assert asked(folder, Need(GB), FakeShell({("mmlsquota",): answer}), where) is None


class TestQuotaTools:
    @pytest.fixture
    def where(self, tmp_path):
        return on(tmp_path, "nfs4", "server:/export/home")

    HEAD = "Disk quotas for user ada (uid 1000): \n     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n"

    @pytest.mark.parametrize(
        "rows, need, told",
        [
            ("server:/export/home 1000 2000 3000 0 5 0 100 0\n", Need(2000 * 1024, 95), None),
            ("server:/export/home 1000 2000 3000 0 5 0 100 0\n", Need(2000 * 1024 + 1), "2.0 MiB needed, 2.0 MiB free"),
            ("server:/export/home 3001* 2000 3000 1700000000 5 0 100 0\n", Need(1), "1 B needed, 0 B free"),
            ("server:/export/other 0 0 1 0 0 0 1 0\n", Need(GB, 10), None),
            ("server:/export/home 1000 2000 0 0 5 0 0 0\n", Need(GB, 10**6), None),
            ("server:/export/home none\n", Need(GB), None),
        ],
    )
    def test_the_line_of_this_file_system_counts(self, folder, where, rows, need, told):
        found = asked(folder, need, FakeShell({("quota", "-w", "-p", "-u"): Said(self.HEAD + rows, rc=1)}), where)
        assert found is None if told is None else found == f"{folder}: {told} (quota of user {UID})"

    def test_the_group_of_the_folder_counts_too(self, folder, where):
        gid = str(folder.stat().st_gid)
        shell = FakeShell({("quota", "-w", "-p", "-g", gid): self.HEAD + "server:/export/home 0 0 1 0 0 0 0 0\n"})
        assert asked(folder, Need(GB), shell, where).endswith(f"(quota of group {gid})")

    def test_no_quotas_at_all(self, folder, where):
        assert asked(folder, Need(GB), FakeShell({("quota",): "Disk quotas for user root (uid 0): none\n"}), where) is None
        assert asked(folder, Need(GB), FakeShell(), where) is None


class TestSitesOwn:
    @pytest.mark.parametrize(
        "answer, need, told",
        [
            ("5000 10\n", Need(5000, 10), None),
            ("5000 10\n", Need(5001, 10), "4.9 KiB needed, 4.9 KiB free"),
            ("5000 10\n", Need(1, 11), "11 files needed, 10 free"),
            ("- 10\n", Need(GB, 10), None),
            ("5000 -\n", Need(1, 10**6), None),
            ("-12 -\n", Need(1), "1 B needed, 0 B free"),
            ("plenty\n", Need(GB), None),
            ("nan nan\n", Need(GB), None),
            ("5000\n", Need(GB), None),
            ("", Need(GB), None),
        ],
    )
    def test_a_command_of_the_site_is_asked_instead(self, tmp_path, folder, answer, need, told):
        shell = FakeShell({("site-quota",): answer, ("lfs",): lustre(0, 0, 1, "-", 0, 0, 1, "-")})
        found = asked(folder, need, shell, on(tmp_path, "lustre", "x"), quota_command="site-quota --of '{folder}' -v", quota="auto")
        assert found is None if told is None else found == f"{folder}: {told} (says site-quota)"
        assert [call.argv for call in shell.calls] == [("site-quota", "--of", str(folder), "-v")]

    @pytest.mark.parametrize("command", ["'", "no-such-command", " "])
    def test_a_command_that_is_none_is_no_shortage(self, tmp_path, folder, command):
        try:
            site = SiteStorage(quota_command=command)
        except ValueError:
            return
        assert shortage(folder, Need(GB), shell=FakeShell(), site=site, mounts=on(tmp_path, "xfs", "x")) is None


class TestStripes:
    def test_a_folder_on_lustre_gets_the_sites_stripes(self, tmp_path, folder):
        where, shell = on(tmp_path, "lustre", "x"), FakeShell({("lfs", "setstripe"): ""})
        assert stripe(folder, SiteStorage(stripe_count=4, stripe_bytes=1 << 24), shell, mounts=where) is None
        assert stripe(folder, SiteStorage(stripe_count=-1), shell, mounts=where) is None
        assert [call.argv for call in shell.calls] == [
            ("lfs", "setstripe", "-c", "4", "-S", "16777216", str(folder)),
            ("lfs", "setstripe", "-c", "-1", str(folder)),
        ]

    def test_nothing_is_done_elsewhere_or_where_the_site_asks_for_nothing(self, tmp_path, folder):
        shell = FakeShell({("lfs",): ""})
        assert stripe(folder, SiteStorage(stripe_count=4), shell, mounts=on(tmp_path, "gpfs", "x")) is None
        assert stripe(folder, SiteStorage(), shell, mounts=on(tmp_path, "lustre", "x")) is None
        assert shell.calls == []

    def test_a_failure_is_a_note(self, tmp_path, folder):
        where, site = on(tmp_path, "lustre", "x"), SiteStorage(stripe_count=400)
        said = FakeShell({("lfs", "setstripe"): Said(err="error on ioctl:\nInvalid argument", rc=22)})
        assert stripe(folder, site, said, mounts=where) == f"{folder}: lfs setstripe -c 400 failed: error on ioctl: Invalid argument"
        assert "lfs: No such file or directory" in stripe(folder, site, FakeShell(), mounts=where)
        assert "no answer in 30 s" in stripe(folder, site, FakeShell({("lfs",): Said(seconds=99)}), mounts=where)
