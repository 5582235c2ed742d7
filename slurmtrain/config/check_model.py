"""Is the model one that there can be? Each function raises ConfigError for the first thing that does not fit."""

from __future__ import annotations

from slurmtrain.config.job import JobConfig
from slurmtrain.config.refusal import divisors, refuse


def check_shape(job: JobConfig) -> None:
    model, rotary = job.model, job.model.traits.positions == "rotary"
    if model.heads % model.kv_heads:
        refuse(job, "model.kv_heads", model.kv_heads, f"does not divide heads = {model.heads}: use {divisors(model.heads)}")
    if rotary and model.head_dim % 2:
        refuse(job, "model.head_dim", model.head_dim, "must be even, since rotary positions turn pairs: choose other hidden or heads")
    if model.family == "gpt2" and model.kv_heads != model.heads:
        refuse(job, "model.kv_heads", model.kv_heads, f"gpt2 has no grouped keys and values: use heads = {model.heads}")
    for key in ("dropout", "attention_dropout"):
        if getattr(model, key) >= 1:
            refuse(job, f"model.{key}", getattr(model, key), "must be less than 1: at 1 nothing is left")


def check_positions(job: JobConfig) -> None:
    model, length = job.model, job.training.sequence_length
    learned = model.traits.positions == "learned"
    if learned and model.max_positions is None:
        refuse(job, "model.max_positions", None, f"{model.family} learns its positions: give their number, at least {length}")
    if not learned and model.max_positions is not None:
        refuse(
            job, "model.max_positions", model.max_positions, f"{model.family} turns its positions and has no table of them: leave it out"
        )
    if model.max_positions is not None and model.max_positions < length:
        refuse(job, "training.sequence_length", length, f"the model has max_positions = {model.max_positions}: use that or less")


def check_first_values(job: JobConfig) -> None:
    model = job.model
    for key in ("weights_names", "weights_missing", "weights_surplus"):
        value = getattr(model, key)
        if model.weights is None and value:
            shown = dict(value) if isinstance(value, dict) else list(value)
            refuse(job, f"model.{key}", shown, "is about model.weights, and there are none: say them, or leave it out")


def check_rope_scaling(job: JobConfig) -> None:
    scaling = job.model.rope_scaling
    if scaling is None:
        return
    if job.model.traits.positions != "rotary":
        refuse(job, "model.rope_scaling", scaling.kind, f"{job.model.family} has no rotary positions: leave it out")
    if scaling.factor < 1:
        refuse(job, "model.rope_scaling.factor", scaling.factor, "must be 1 or more: it stretches positions")
    if scaling.kind == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        fault = f"must be more than low_freq_factor = {scaling.low_freq_factor:g}, such as {4 * scaling.low_freq_factor:g}"
        refuse(job, "model.rope_scaling.high_freq_factor", scaling.high_freq_factor, fault)
    if scaling.kind == "yarn" and scaling.beta_fast <= scaling.beta_slow:
        fault = f"must be more than beta_slow = {scaling.beta_slow:g}, such as {32 * scaling.beta_slow:g}"
        refuse(job, "model.rope_scaling.beta_fast", scaling.beta_fast, fault)
