"""The ranks' interpreter, their MPI and the site's own commands: real programs, and what is said of those that fail."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.preflight.checks import mpi_library, site_commands, software_equal, software_there
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.sources import commands, mpi, software
from slurmtrain.shell import SystemShell
from tests.mpi_world import ROOT
from tests.preflight.tree import judged, request

SITE_PACKAGES = Path(pytest.__file__).parents[1]
MACHINE = Machine(SystemShell(), dict(os.environ), SystemClock())


@pytest.fixture
def interpreter(tmp_path):
    """A program in the place of python."""

    def make(*lines: str) -> str:
        path = tmp_path / "python"
        path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        path.chmod(0o755)
        return str(path)

    return make


def told(**more):
    wish = request(**more)
    return judged(software_there.CHECK, software.look(MACHINE, wish), wish)


class TestSoftware:
    def test_this_interpreter_has_what_ranks_need(self, tmp_path):
        found = software.look(MACHINE, request(code=str(tmp_path)))
        assert judged(software_there.CHECK, found, request(code=str(tmp_path))) == []
        assert found["version"] == platform.python_version()
        for name in ("torch", "mpi4py", "numpy", "h5py"):
            assert found["packages"][name] == {"version": metadata.version(name), "there": True}

    def test_another_interpreter_is_asked_and_imports_nothing(self, tmp_path):
        """A module that cannot be imported is found, and not imported."""
        (tmp_path / "fragile.py").write_text("raise SystemExit(7)\n")
        (tmp_path / "python").symlink_to(sys.executable)
        machine = Machine(SystemShell(), {**os.environ, "PYTHONPATH": f"{tmp_path}:{SITE_PACKAGES}:{ROOT}"}, SystemClock())
        wish = request(python=str(tmp_path / "python"), packages=("numpy", "fragile"))
        found = software.look(machine, wish)
        assert judged(software_there.CHECK, found, wish) == []
        assert found["packages"]["numpy"]["version"] == metadata.version("numpy")
        assert found["packages"]["fragile"] == {"version": "", "there": True}

    def test_packages_that_are_not_there_are_named_together(self):
        found = told(packages=("no_such_package", "numpy", "nor_this"))
        assert found == [("fail", f"{sys.executable}: it has no no_such_package, nor_this")]

    def test_interpreters_that_cannot_be_run(self, tmp_path, interpreter):
        gone = str(tmp_path / "gone")
        assert told(python=gone) == [("fail", f"{gone}: it cannot be run: {gone}: No such file or directory")]
        broken = interpreter("echo 'libpython3.11.so: cannot open shared object file' >&2", "exit 127")
        assert told(python=broken) == [("fail", f"{broken}: it cannot be run: libpython3.11.so: cannot open shared object file")]
        slow = interpreter("exec tail -f /dev/null")
        assert told(python=slow, site={"preflight": {"timeout_s": 0.4}}) == [("fail", f"{slow}: it cannot be run: no answer in 0.3 s")]

    def test_code_that_the_node_does_not_see(self, tmp_path, interpreter):
        python = interpreter("""echo '{"version": "3.11.7", "packages": {}}'""")
        found = told(python=python, packages=(), code=str(tmp_path / "code"))
        assert found == [("fail", f"{tmp_path}/code: the run's code cannot be seen: No such file or directory")]

    def test_versions_are_compared(self):
        def facts(torch: str):
            return {"packages": {"torch": {"version": torch, "there": bool(torch)}}}

        def odd(**versions: str):
            found = software_equal.CHECK.compare({node: facts(torch) for node, torch in versions.items()}, request())
            return [node for node, _ in found]

        assert odd(n1="2.13.0", n2="2.12.0", n3="2.13.0") == ["n2"]
        assert odd(n1="2.13.0", n2="2.12.0") == ["n1", "n2"], "such a world must not start, whoever is right"
        assert odd(n1="2.13.0", n2="") == [], "what is absent the other check tells"


class TestMpi:
    def test_the_library_is_loaded_and_mpi_is_not_started(self):
        """Where MPI started, Open MPI and others would look for their launcher by these variables."""
        machine = Machine(SystemShell(), {**os.environ, "PMI_FD": "999", "PMI_RANK": "0", "PMI_SIZE": "2"}, SystemClock())
        seen = mpi.look(machine, request())
        assert seen["mpi4py"] == metadata.version("mpi4py")
        assert seen["library"].startswith("MPICH Version:")
        assert judged(mpi_library.CHECK, seen, request()) == []

    def test_a_library_that_is_not_there(self):
        machine = Machine(SystemShell(), {**os.environ, "MPI4PY_LIBMPI": "/gone/libmpi.so"}, SystemClock())
        [(grade, said)] = judged(mpi_library.CHECK, mpi.look(machine, request()), request())
        assert grade == "fail"
        assert "/gone/libmpi.so" in said

    def test_one_that_dies_and_one_that_hangs(self, interpreter):
        assert mpi.look(MACHINE, request(python=interpreter("kill -SEGV $$"))) == {"error": "ended by signal 11"}
        slow = request(python=interpreter("exec tail -f /dev/null"), site={"preflight": {"timeout_s": 0.4}})
        assert mpi.look(MACHINE, slow) == {"error": "no answer in 0.3 s"}

    def test_the_sites_library_is_named_as_for_the_ranks(self):
        wish = request(site={"python": {"mpi4py_libmpi": "/opt/mpi/libmpi.so"}})
        assert "/opt/mpi/libmpi.so" in mpi.look(MACHINE, wish)["error"]

    def test_a_script_that_needs_none_and_a_node_outside_of_a_job_are_not_held_to_it(self):
        assert not mpi_library.CHECK.wanted(request(packages=()))
        modules = request(site={"environment": {"modules": ["openmpi"]}}, python="python3")
        alone = replace(modules, nonce="")
        assert (mpi_library.CHECK.wanted(modules), mpi_library.CHECK.wanted(alone)) == (True, False)
        assert (software_there.CHECK.wanted(modules), software_there.CHECK.wanted(alone)) == (True, False)
        assert mpi_library.CHECK.wanted(replace(request(), nonce=""))


class TestCommands:
    def told(self, timeout_s: float = 20.0, **said: str):
        wish = request(site={"preflight": {"commands": said, "timeout_s": timeout_s}})
        return judged(site_commands.CHECK, commands.look(MACHINE, wish), wish)

    def test_exit_codes_of_nagios_plugins(self):
        script = """sh -c 'echo "DISK $0 | /=2643MB;5948;5958"; exit $0' """
        found = self.told(ok=script + "0", warns=script + "1", bad=script + "2", lost=script + "3", odd=script + "9")
        assert found == [("warn", "warns: DISK 1"), ("fail", "bad: DISK 2"), ("unknown", "lost: DISK 3"), ("unknown", "odd: DISK 9")]

    def test_what_is_not_there_or_cannot_be_read_has_not_looked(self):
        found = self.told(gone="/usr/local/sbin/check_gone -w 1", torn="echo 'x")
        assert [grade for grade, _ in found] == ["unknown", "unknown"]
        assert "No such file" in found[0][1]

    def test_of_one_that_said_it_was_fine_and_came_to_no_end_the_end_is_told_first(self):
        found = self.told(0.8, hangs="sh -c 'echo fine; tail -f /dev/null'", left="sh -c 'echo fine; sleep 61 &'")
        assert found == [
            ("unknown", "hangs: sh: no answer in 0.6 s; before that it said: fine"),
            ("unknown", found[1][1]),
        ]
        assert found[1][1].startswith("left: sh: it has ended, and what it started holds its output open after 0.6 s")

    def test_those_that_hang_cost_one_limit_together(self):
        hang = "tail -f /dev/null"
        began = time.monotonic()
        found = self.told(0.8, a=hang, b=hang, c=hang, d="true")
        assert [grade for grade, _ in found] == ["unknown"] * 3
        assert "no answer in 0.6 s" in found[0][1]
        assert time.monotonic() - began < 3
