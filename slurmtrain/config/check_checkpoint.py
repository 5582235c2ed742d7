"""Do the keys of [checkpoint] fit each other, the rest of the job and the site? Raises ConfigError for the first that does not."""

from __future__ import annotations

from typing import Any

from slurmtrain.config.job import CheckpointConfig, JobConfig
from slurmtrain.config.optimizer import state_bytes
from slurmtrain.config.refusal import either, multiples, refuse
from slurmtrain.config.site import SiteConfig
from slurmtrain.units import format_size


def check_when(job: JobConfig) -> None:
    """When to save, and what to keep."""
    wish = job.checkpoint
    if wish.interval is not None:
        _check_auto(job)
    elif not wish.every_steps and wish.every_minutes is None:
        fault = 'a failure would cost the whole run: give every_steps, every_minutes, or interval = "auto"'
        _refuse(job, "every_steps", wish.every_steps, fault)
    if wish.keep_every_steps is not None and wish.every_steps and wish.keep_every_steps % wish.every_steps:
        fault = f"no checkpoint is made at most of its multiples: use a multiple of every_steps = {wish.every_steps}"
        near = multiples(wish.every_steps, near=wish.keep_every_steps)
        _refuse(job, "keep_every_steps", wish.keep_every_steps, f"{fault}, such as {near}")
    known = ["loss", *job.evaluation.sets]
    if wish.keep_best and wish.best_metric is None:
        _refuse(job, "keep_best", wish.keep_best, f"the best by what? Give best_metric: {either(known)}")
    if wish.best_metric is not None and not wish.keep_best:
        _refuse(job, "best_metric", wish.best_metric, "nothing is kept for it: give keep_best, such as 1, or leave it out")
    if wish.best_metric is not None and wish.best_metric not in known:
        _refuse(job, "best_metric", wish.best_metric, f"is not measured: use {either(known)}, or add it to [evaluation.sets]")


def _check_auto(job: JobConfig) -> None:
    """Of an interval that is worked out; `every_minutes` stays what it is, the longest time without a save."""
    wish = job.checkpoint
    if wish.every_steps:
        _refuse(job, "every_steps", wish.every_steps, f'and interval = "{wish.interval}" say when to save: leave one of them out')
    if wish.keep_every_steps is not None:
        fault = f'interval = "{wish.interval}" saves at no such multiples: use keep_every_hours'
        _refuse(job, "keep_every_steps", wish.keep_every_steps, fault)


def check_how(job: JobConfig, site: SiteConfig) -> None:
    """How to write: asynchronously, by how many writers, through the nodes' own disks."""
    wish, ranks = job.checkpoint, job.slurm.gpus_per_node or site.node.gpus
    if wish.mode == "sync" and not wish.local and wish.timeout_s != _default("timeout_s"):
        fault = 'is of mode = "async", and of local = true: the ranks themselves write otherwise; leave it out'
        _refuse(job, "timeout_s", wish.timeout_s, fault)
    if wish.writers_per_node is not None and wish.writers_per_node > ranks:
        _refuse(job, "writers_per_node", wish.writers_per_node, f"a node has {ranks} ranks: use 1 to {ranks}, or leave it out")
    if wish.local and site.paths.scratch is None:
        fault = f"site {site.name} has no paths.scratch: have it set in the site file, or leave local out"
        _refuse(job, "local", True, fault)  # noqa: FBT003
    if not wish.local and wish.flush_every != _default("flush_every"):
        _refuse(job, "flush_every", wish.flush_every, "is of local = true: every checkpoint goes to the shared folder otherwise")
    _check_memory(job, site)


def _check_memory(job: JobConfig, site: SiteConfig) -> None:
    """A save that is asynchronous, or goes to the nodes' own disks, holds the state once more in their memory."""
    wish, state, memory = job.checkpoint, state_bytes(job) // job.slurm.nodes, site.node.memory_bytes
    if memory is None or state <= memory:
        return
    fault = f"a copy of the state takes {format_size(state)} on each node, which has {format_size(memory)}: use more nodes"
    if wish.mode == "async":
        _refuse(job, "mode", "async", f"{fault}, or sync")
    if wish.local:
        _refuse(job, "local", True, f"{fault}, or leave local out")  # noqa: FBT003


def notes_of(job: JobConfig, nodes: int | None = None) -> tuple[str, ...]:
    """What a person should know of keys that are legal. `nodes`: of an attempt; default: the job's."""
    if job.checkpoint.local and (nodes or job.slurm.nodes) == 1:
        return ("checkpoint.local on one node: there is no partner that could hold a copy; what the node loses is the last flush away",)
    return ()


def _default(name: str) -> Any:
    return CheckpointConfig.model_fields[name].default


def _refuse(job: JobConfig, name: str, value: Any, problem: str) -> None:
    refuse(job, f"checkpoint.{name}", value, problem)
