"""The site files and examples that come with slurmtrain: they load, fit their hardware, and explain every key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from slurmtrain.config.checks import check_job, resolve_dp
from slurmtrain.config.job import JobConfig
from slurmtrain.config.keys import section_at, walk
from slurmtrain.config.load import load_job
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.sites import load_site

ROOT = Path(__file__).resolve().parents[2]
SITES = {path.stem: path for path in (ROOT / "site_configs").glob("*.toml")}
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
NONE = Path("/nonexistent/policy.toml")
ENV = {"HOME": "/home/ada"}

# gpus per node, NVLink domain in GPUs, gigabytes per second of a node's NICs: stas00/ml-engineering@744d01e1 network/README.md
# (Inter-node networking and NVLink tables), Llama 3 (arXiv 2407.21783 sec 3.3) for RoCE, Megatron-Bridge@067f987d for NVL72.
HARDWARE = {
    "dgx-h100": (8, 8, 400),
    "dgx-b300": (8, 8, 800),
    "gb200-nvl72": (4, 72, 200),
    "hgx-h100-roce": (8, 8, 400),
    "slingshot-gh200": (4, 4, 100),
}


def load(name):
    return load_site(name, ENV, policy_path=NONE)


def test_the_promised_sites_are_there():
    assert {"devcluster", "local", "generic", *HARDWARE} == set(SITES)


@pytest.mark.parametrize("name", HARDWARE)
def test_real_sites_have_the_published_shape(name):
    site = load(name)
    gpus, domain, nics = HARDWARE[name]
    assert site.node.gpus == gpus
    assert site.node.gpus * site.node.block_nodes == domain
    assert site.fabric.nics_per_node * site.fabric.nic_gbps == nics * 8
    assert site.device == "cuda"
    assert site.fabric.rendezvous_interface
    assert site.fabric.environment


def test_devcluster_and_local_run_anywhere():
    devcluster, local = load("devcluster"), load("local")
    assert (devcluster.device, devcluster.launcher, devcluster.slurm.mpi, devcluster.node.gpus) == ("cpu", "srun", "pmi2", 4)
    assert (local.device, local.launcher, str(local.paths.root)) == ("cpu", "mpiexec", "runs")
    assert devcluster.fabric.rendezvous_interface == local.fabric.rendezvous_interface == "lo"


def comment_of(lines, index):
    """Whether a key is explained: on its line, or by comment lines above it or above the keys that it follows without a gap."""
    if "#" in re.sub(r'"[^"]*"', "", lines[index]).lstrip("# "):
        return True
    while index and lines[index - 1].strip():
        index -= 1
        if re.match(r"# (?![a-z_0-9]+ = )", lines[index]):
            return True
    return False


@pytest.mark.parametrize("name", SITES)
def test_every_key_of_a_site_file_has_its_comment(name):
    lines = SITES[name].read_text().splitlines()
    bare = [line for i, line in enumerate(lines) if re.match(r"(# )?[A-Za-z_0-9]+ = ", line) and not comment_of(lines, i)]
    assert bare == ([] if name == "generic" else [line for line in bare if line.startswith("description")])


def uncommented(text):
    return re.sub(r"(?m)^# ([A-Za-z_0-9]+ = )", r"\1", text)


def table_keys(table, prefix=""):
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from table_keys(value, f"{prefix}{key}.")


def test_generic_explains_every_key_of_a_site():
    said = set(table_keys(tomllib.loads(uncommented(SITES["generic"].read_text()))))
    assert set(walk(SiteConfig)) <= said


def test_the_optional_lines_of_generic_are_right_too(tmp_path):
    text = uncommented(SITES["generic"].read_text()).replace('nvlink_domain = "node"', 'nvlink_domain = "block"')
    (tmp_path / "mine.toml").write_text(text)
    assert load_site(str(tmp_path / "mine.toml"), ENV, policy_path=NONE).node.block_nodes == 18


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("site", ["devcluster", "local"])
def test_examples_fit_the_sites_that_every_machine_has(path, site):
    check_job(load_job(path, env=ENV, policy_path=NONE), load(site))


def test_the_first_example_shows_all_three_kinds_of_parallelism():
    job = load_job(ROOT / "examples" / "tiny-llama.toml", env=ENV, policy_path=NONE)
    assert (job.parallel.tp, job.parallel.pp, resolve_dp(job, 4), job.slurm.nodes) == (2, 2, 2, 2)
    assert job.model.vocab >= 257
    assert job.data.path == ROOT / "examples" / "data" / "stdlib"
    assert job.training.global_batch // 2 == 4


@pytest.mark.parametrize(("page", "model"), [("job-file.md", JobConfig), ("sites.md", SiteConfig)])
def test_docs_name_every_key(page, model):
    text = (ROOT / "docs" / page).read_text()
    values = [key for key in walk(model) if not section_at(model, key)]
    assert [key for key in values if f"`{key}`" not in text] == []


def test_the_job_of_the_docs_loads_and_fits(tmp_path):
    block = re.search(r"```toml\n(\[model\].*?)```", (ROOT / "docs" / "job-file.md").read_text(), re.DOTALL)
    (tmp_path / "doc.toml").write_text(block[1])
    check_job(load_job(tmp_path / "doc.toml", env=ENV, policy_path=NONE), load("dgx-h100"))
