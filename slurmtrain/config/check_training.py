"""Do numerics, optimiser, data and evaluation fit together? Each function raises ConfigError for the first thing that does not fit."""

from __future__ import annotations

import math

from slurmtrain.config.compile import compile_fault
from slurmtrain.config.job import JobConfig
from slurmtrain.config.optimizer import optimizer_fault
from slurmtrain.config.refusal import either, refuse
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.training import LARGEST_SCALE
from slurmtrain.rundir import valid_run_name


def check_optimizer(job: JobConfig) -> None:
    optimizer, steps = job.optimizer, job.training.steps
    end = optimizer.total_steps or steps
    if (fault := optimizer_fault(job)) is not None:
        refuse(job, "optimizer.name", optimizer.name, fault)
    if max(optimizer.betas) >= 1:
        refuse(job, "optimizer.betas", list(optimizer.betas), "both must be less than 1, such as [0.9, 0.95]")
    if optimizer.momentum >= 1:
        refuse(job, "optimizer.momentum", optimizer.momentum, "must be less than 1, such as 0.9")
    if optimizer.momentum and optimizer.name not in ("sgd", "muon"):
        refuse(job, "optimizer.momentum", optimizer.momentum, f"{optimizer.name} has none: leave it out, or use sgd or muon")
    if optimizer.min_lr > optimizer.lr:
        refuse(job, "optimizer.min_lr", optimizer.min_lr, f"must be at most lr = {optimizer.lr:g}")
    if optimizer.warmup_steps > steps > 0:
        refuse(job, "optimizer.warmup_steps", optimizer.warmup_steps, f"must be at most training.steps = {steps}")
    if optimizer.total_steps is not None and optimizer.total_steps < optimizer.warmup_steps:
        fault = f"must be at least warmup_steps = {optimizer.warmup_steps}, or be left out: then it is training.steps = {steps}"
        refuse(job, "optimizer.total_steps", optimizer.total_steps, fault)
    if optimizer.decay_steps is not None:
        if optimizer.schedule != "wsd":
            fault = f'is of schedule = "wsd"; {optimizer.schedule} ends at total_steps: leave it out'
            refuse(job, "optimizer.decay_steps", optimizer.decay_steps, fault)
        if optimizer.decay_steps > end - optimizer.warmup_steps:
            fault = f"is longer than what warm-up leaves of {end} steps: use at most {end - optimizer.warmup_steps}"
            refuse(job, "optimizer.decay_steps", optimizer.decay_steps, fault)
    _check_end(job)
    if optimizer.schedule == "inverse-sqrt" and optimizer.warmup_steps == 0:
        refuse(job, "optimizer.warmup_steps", 0, "inverse-sqrt falls from the end of the warm-up on: give one, such as 100")


def _check_end(job: JobConfig) -> None:
    """The end of the schedule: where there is none, and where training would go on past it without learning."""
    optimizer, steps = job.optimizer, job.training.steps
    if optimizer.total_steps is not None and optimizer.schedule in ("constant", "inverse-sqrt"):
        fault = f"{optimizer.schedule} does not come down to an end: leave it out, or use another schedule"
        refuse(job, "optimizer.total_steps", optimizer.total_steps, fault)
    if optimizer.min_lr and optimizer.schedule == "constant":
        refuse(job, "optimizer.min_lr", optimizer.min_lr, "constant stays at lr: leave it out, or use another schedule")
    if optimizer.total_steps is not None and optimizer.total_steps < steps and not optimizer.min_lr:
        fault = f"the learning rate is 0 from there on, and training.steps = {steps}: use {steps} or more, or a min_lr"
        refuse(job, "optimizer.total_steps", optimizer.total_steps, fault)


def check_numerics(job: JobConfig, site: SiteConfig) -> None:
    training = job.training
    scale = training.loss_scale
    if scale.initial < scale.minimum:
        refuse(job, "training.loss_scale.initial", scale.initial, f"must be at least minimum = {scale.minimum:g}")
    for key in ("initial", "minimum"):
        value = getattr(scale, key)
        if math.frexp(value)[0] != 0.5:
            fault = f"must be a power of two, such as {65536 if key == 'initial' else 1}: only those scale without rounding"
            refuse(job, f"training.loss_scale.{key}", value, fault)
    if scale.initial > LARGEST_SCALE:
        refuse(job, "training.loss_scale.initial", scale.initial, f"is more than the scale ever grows to: use {LARGEST_SCALE:g} or less")
    if training.dtype == "fp32" and training.reduce_dtype == "bf16":
        refuse(job, "training.reduce_dtype", "bf16", 'would round the gradients of dtype = "fp32": use "fp32", or dtype = "bf16"')
    if training.dtype == "fp16" and training.reduce_dtype == "bf16":
        refuse(job, "training.reduce_dtype", "bf16", 'is not for fp16: use "fp32"')
    if training.recompute == "none" and training.recompute_every > 1:
        fault = 'recomputes nothing: use recompute = "selective" or "full", or leave it out'
        refuse(job, "training.recompute_every", training.recompute_every, fault)
    if training.recompute_every > job.model.layers:
        fault = f"is more than layers = {job.model.layers}, so that no layer would be recomputed: use {job.model.layers} or less"
        refuse(job, "training.recompute_every", training.recompute_every, fault)
    if (uncompilable := compile_fault(job)) is not None:
        refuse(job, "training.compile", training.compile, uncompilable)
    if training.ema_decay is not None and training.ema_decay >= 1:
        refuse(job, "training.ema_decay", training.ema_decay, "must be less than 1, such as 0.999: at 1 the average never moves")
    if training.matmul == "torchao-fp8" and site.device != "cuda":
        fault = f'needs GPUs, and the devices of site {site.name} are {site.device}: use "native" or "fp8-emulated"'
        refuse(job, "training.matmul", training.matmul, fault)


def check_evaluation(job: JobConfig) -> None:
    evaluation, target, profile, steps = job.evaluation, job.target, job.metrics.profile, job.training.steps
    for name in evaluation.sets:
        if name == "loss" or not valid_run_name(name):
            fault = "cannot name an evaluation set: use letters, digits, dot, dash and underscore; `loss` is the training's own"
            refuse(job, f"evaluation.sets.{name}", str(evaluation.sets[name]), fault)
    known = ["loss", *evaluation.sets]
    if target is not None and target.metric not in known:
        refuse(job, "target.metric", target.metric, f"is not measured: use {either(known)}, or add it to [evaluation.sets]")
    if evaluation.first and not evaluation.sets:
        refuse(job, "evaluation.first", True, "there is nothing to evaluate: add a folder of tokens to [evaluation.sets]")  # noqa: FBT003
    if profile is not None and not 1 <= profile[0] <= profile[1]:
        refuse(job, "metrics.profile", list(profile), "must be a first and a last step, counted from 1: [10, 12]")
    if profile is not None and profile[0] > steps:
        refuse(job, "metrics.profile", list(profile), f"begins after the last step, {steps}: nothing would be recorded")
    if evaluation.sets and not evaluation.first and evaluation.every_steps > steps > 0:
        fault = f"is more than training.steps = {steps}, so that nothing would be evaluated: use {steps} or less, or first = true"
        refuse(job, "evaluation.every_steps", evaluation.every_steps, fault)


def check_data(job: JobConfig, site: SiteConfig) -> None:
    data = job.data
    if data.stage_bytes is not None and data.stage == "none":
        refuse(job, "data.stage_bytes", data.stage_bytes, 'nothing is staged: use stage = "local", or leave it out')
    if data.stage == "local" and site.paths.scratch is None:
        refuse(job, "data.stage", "local", f"site {site.name} has no paths.scratch: have it set in the site file, or leave stage out")
    paths = [source.path for source in data.sources]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            refuse(job, f"data.sources[{index}].path", str(path), "is there twice: give it once, with the sum of the weights")
