"""The job file, read: TOML, then presets and the shape of weights under [model], then --set, options and policy; checked; paths resolved.

A later speaker wins, except that nothing wins over the policy: whoever contradicts it is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmtrain.config.check_entry import check_form
from slurmtrain.config.draft import Draft
from slurmtrain.config.expand import expand
from slurmtrain.config.job import JobConfig
from slurmtrain.config.overrides import apply_options, apply_sets
from slurmtrain.config.policy import POLICY_PATH, apply_policy
from slurmtrain.config.presets import merge_preset
from slurmtrain.config.tomlfile import read_toml
from slurmtrain.config.weights import absolute, merge_weights
from slurmtrain.errors import ConfigError
from slurmtrain.rundir import valid_run_name

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def load_job(
    path: Path,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    env: Mapping[str, str] = os.environ,
    policy_path: Path = POLICY_PATH,
) -> JobConfig:
    """The resolved job. `sets`: texts "a.b=value"; `options`: values by dotted key, None where not given.

    Options of `slurm.extra` and `run.include` add to the file's; all others replace. Raises ConfigError: one line with the file
    (or "--set KEY", or "command line"), the dotted key, the value, and what is allowed.
    """
    draft = Draft(read_toml(path, "job file"), str(path))
    apply_sets(draft, JobConfig, sets)
    apply_options(draft, JobConfig, options or {})
    check_form(draft)
    merge_preset(draft)
    merge_weights(draft, path.parent, env)
    _split_nodes(draft)
    _name_run(draft, path)
    apply_policy(draft, JobConfig, policy_path)
    return _with_paths(draft.build(JobConfig), draft, path, env)


def _split_nodes(draft: Draft) -> None:
    """A range "8-10" means 8 nodes and 2 spares; of two speakers on spares the later wins, one speaker must not say both."""
    given, key = draft.get("slurm.nodes"), "slurm.nodes"
    if not isinstance(given, str):
        return
    rank, where = draft.speaker(key)
    form = _RANGE.fullmatch(given.strip())
    if not form:
        raise ConfigError('must be a number, or a range such as "8-10": 8 nodes and 2 spares', where=where, key=key, value=given)
    least, most = int(form[1]), int(form[2] or form[1])
    if most < least:
        raise ConfigError(f'ends before it begins: write "{most}-{least}"', where=where, key=key, value=given)
    draft.put(key, least, rank, where)
    if form[2] is None:
        return
    if draft.get("slurm.spares") is not None:
        other = draft.speaker("slurm.spares")[0]
        if other == rank:
            raise ConfigError("says the spares already: give a range or slurm.spares, not both", where=where, key=key, value=given)
        if other > rank:
            return
    draft.put("slurm.spares", most - least, rank, where)


def _name_run(draft: Draft, path: Path) -> None:
    run = draft.values.setdefault("run", {})
    if not isinstance(run, dict) or "name" in run:
        return
    if not valid_run_name(path.stem):
        problem = f'the file\'s name {path.stem!r} cannot name a run: say [run] name = "...", or -J NAME'
        raise ConfigError(problem, where=str(path), key="run.name")
    run["name"] = path.stem


def _with_paths(job: JobConfig, draft: Draft, path: Path, env: Mapping[str, str]) -> JobConfig:
    """Paths of data, evaluation sets and weights absolute, seen from the job file's folder; `python` too, unless it is a bare name."""

    def resolve(value: Path | str, key: str) -> Path:
        return Path(os.path.abspath(path.parent / expand(value, env, where=draft.where(key), key=key)))  # noqa: PTH100

    python = job.python
    if python and ("/" in python or python.startswith(("~", "$"))):
        python = str(resolve(python, "python"))
    if job.entry is not None:
        return job.model_copy(update={"entry": job.entry.resolved(), "python": python})
    data, sets, weights = job.data, job.evaluation.sets, job.model.weights
    if weights is not None:
        weights = absolute(weights, path.parent, env, draft.where("model.weights"))
    sources = tuple(
        one.model_copy(update={"path": resolve(one.path, f"data.sources[{number}].path")}) for number, one in enumerate(data.sources)
    )
    found = {name: resolve(one, f"evaluation.sets.{name}") for name, one in sets.items()}
    return job.model_copy(
        update={
            "model": job.model.model_copy(update={"weights": weights}),
            "data": data.model_copy(update={"path": data.path and resolve(data.path, "data.path"), "sources": sources}),
            "evaluation": job.evaluation.model_copy(update={"sets": found}),
            "python": python,
        }
    )
