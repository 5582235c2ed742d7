"""`slurmtrain preflight` on a real cluster: all nodes look at themselves, MPI forms a world, and one that is not fit is named."""

from __future__ import annotations

import json
import sys

import pytest

from tests.fixtures_slurm import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]

BROKEN = """
[preflight.commands]
fans = "/bin/sh -c 'test $SLURMD_NODENAME != n2 || { echo fan 3 stands still; exit 2; }'"
"""


def test_healthy_nodes_may_start_and_a_bad_one_is_named(cluster, tmp_path):
    site = tmp_path / "sick.toml"
    site.write_text((ROOT / "site_configs" / "devcluster.toml").read_text() + BROKEN)
    preflight = f"{sys.executable} -m slurmtrain.cli.main preflight --json --root {tmp_path}"
    script = f"{preflight} > well.json; echo $?; {preflight} --site {site} > sick.json; echo $?"
    nodes = ["-w", "n[1-3]", "--exclusive", "--overcommit"]
    done = cluster.run(["salloc", "-N3", *nodes, "bash", "-c", script], cwd=tmp_path, timeout_s=200)
    well, sick = (json.loads((tmp_path / f"{name}.json").read_bytes()) for name in ("well", "sick"))
    assert done.stdout.split() == ["0", "1"], (well, sick, done.stderr)
    assert [one["node"] for one in well["nodes"] if one["ok"]] == ["n1", "n2", "n3"]
    assert all(one["passed"]["mpi-world"] and one["passed"]["clock-skew"] for one in well["nodes"])
    assert [one["node"] for one in sick["nodes"] if not one["ok"]] == ["n2"]
    (finding,) = sick["nodes"][1]["findings"]
    assert (finding["check"], finding["item"], finding["said"]) == ("site-command", "fans", "fan 3 stands still")
    assert [sick["nodes"][place]["passed"]["mpi-world"] for place in (0, 2)] == [True, True]
    assert [path.name for path in (tmp_path / ".preflight").iterdir()] == [sick["folder"].rpartition("/")[2]], "only what was bad is kept"
