"""A job, a site and a request to vary."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import TemplateError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.launch.render import SUFFIX, Templates
from slurmtrain.launch.request import LaunchRequest, build_request
from slurmtrain.rundir import RunDir
from tests.launch.facts import SampleFacts

INSTALLED = Path(str(files("slurmtrain.sbatch_templates")))
SHAPE = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 320}


def job(*, name: str = "llama", environment: dict[str, str] | None = None, run: dict[str, Any] | None = None, **slurm: Any) -> JobConfig:
    return JobConfig.model_validate(
        {
            "run": {"name": name, **(run or {})},
            "model": SHAPE,
            "data": {"path": "/data/tokens"},
            "training": {"steps": 10, "sequence_length": 16, "global_batch": 16},
            "parallel": {"tp": 2},
            "slurm": {"nodes": 2, **slurm},
            "environment": environment or {},
        }
    )


def site(**sections: Any) -> SiteConfig:
    known = {"name": "test", "device": "cpu", "node": {"gpus": 4, "cpus_per_gpu": 2}, "slurm": {"stop_notice_s": 60}}
    return SiteConfig.model_validate({**known, **sections})


def plan(a_job: JobConfig, a_site: SiteConfig) -> Plan:
    return build_plan(a_job, a_site)


def request(
    a_job: JobConfig | None = None, a_site: SiteConfig | None = None, *, run: Path = Path("/runs/llama"), **facts: Any
) -> LaunchRequest:
    a_job, a_site = a_job or job(), a_site or site()
    return build_request(a_job, a_site, build_plan(a_job, a_site), RunDir(run), SampleFacts(**facts))


def templates(folder: Path | None = None) -> Templates:
    """slurmtrain's own, hidden by those of a folder."""

    def find(name: str) -> Path:
        for place in (folder, INSTALLED):
            path = place / f"{name}{SUFFIX}" if place else None
            if path and path.is_file():
                return path
        raise TemplateError(f"no template {name!r}")

    return Templates(find, INSTALLED)
