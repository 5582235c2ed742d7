"""Can the model and the batch be cut as the layout says? Each function raises ConfigError for the first thing that does not fit."""

from __future__ import annotations

from math import gcd, lcm

from slurmtrain.config.job import JobConfig
from slurmtrain.config.parallel import LOOPED, V_SHAPED
from slurmtrain.config.refusal import divisors, either, multiples, refuse


def good_tp(job: JobConfig) -> list[int]:
    """Degrees of tensor parallelism that cut heads, feed-forward, keys and values, and sequence."""
    model, length = job.model, job.training.sequence_length
    most = gcd(model.heads, model.ffn)
    return [n for n in range(1, most + 1) if most % n == 0 and _whole_heads(model.kv_heads, n) and length % (job.parallel.cp * n) == 0] or [
        1
    ]


def _whole_heads(kv_heads: int, tp: int) -> bool:
    """Every rank has whole heads of keys and values: its own, or copies that neighbours have too."""
    return kv_heads % tp == 0 or tp % kv_heads == 0


def check_tensor(job: JobConfig) -> None:
    model, tp = job.model, job.parallel.tp
    use = f"use {either(good_tp(job)[:8])}"
    for name, size in {"heads": model.heads, "ffn": model.ffn}.items():
        if size % tp:
            refuse(job, "parallel.tp", tp, f"does not divide {name} = {size}: {use}")
    if not _whole_heads(model.kv_heads, tp):
        fault = f"neither divides kv_heads = {model.kv_heads} nor is a multiple of it, so that ranks would share heads: {use}"
        refuse(job, "parallel.tp", tp, fault)


def check_sequence(job: JobConfig) -> None:
    length, tp, cp = job.training.sequence_length, job.parallel.tp, job.parallel.cp
    pieces = 2 * cp if cp > 1 and job.parallel.cp_mode != "ulysses" else cp
    unit = lcm(cp * tp, pieces)
    if length % unit == 0:
        return
    if cp == 1:
        fault = f"does not divide sequence_length = {length}, which sequence parallelism cuts: use {either(good_tp(job)[:8])}"
        refuse(job, "parallel.tp", tp, fault)
    why = f"cp = {cp} ({job.parallel.cp_mode}) and tp = {tp} cut it into {unit} pieces"
    refuse(job, "training.sequence_length", length, f"{why}: use {multiples(unit, near=length)}")


def check_context(job: JobConfig) -> None:
    cp, mode, model, tp = job.parallel.cp, job.parallel.cp_mode, job.model, job.parallel.tp
    if cp == 1:
        return
    heads = model.heads // tp
    if mode == "ulysses" and heads % cp:
        fault = f"ulysses exchanges whole heads, and a rank has {heads} (heads / tp = {model.heads} / {tp})"
        refuse(job, "parallel.cp", cp, f'{fault}: use {divisors(heads)}, or cp_mode = "ring"')
    if mode == "ring" and job.data.documents == "separate":
        refuse(job, "parallel.cp_mode", mode, 'keeps no documents apart (data.documents = "separate"): use "allgather" or "ulysses"')
    if mode == "ring" and model.window is not None:
        refuse(job, "parallel.cp_mode", mode, f'has no sliding window (model.window = {model.window}): use "allgather" or "ulysses"')
    if mode != "ulysses" and model.attention_dropout > 0:
        fault = f'draws no dropout in attention (model.attention_dropout = {model.attention_dropout:g}): use "ulysses", or 0'
        refuse(job, "parallel.cp_mode", mode, fault)


def check_schedule(job: JobConfig) -> None:
    parallel = job.parallel
    schedule, vp, pp = parallel.resolved_schedule(), parallel.resolved_vp(), parallel.pp
    if pp == 1 and (parallel.vp or 1) > 1:
        refuse(job, "parallel.vp", vp, "needs a pipeline: use pp = 2 or more, or leave vp out")
    if pp == 1:
        return
    if schedule in LOOPED and vp < 2:
        refuse(job, "parallel.vp", vp, f'{schedule} runs several stages a rank: use 2 or more, or schedule = "1f1b"')
    if schedule in V_SHAPED and vp != 2:
        refuse(job, "parallel.vp", vp, f"{schedule} runs exactly two stages a rank: use 2, or leave vp out")
    if schedule in ("gpipe", "1f1b") and vp > 1:
        refuse(
            job, "parallel.vp", vp, f"{schedule} runs one stage a rank: leave vp out, or use schedule = {either([repr(s) for s in LOOPED])}"
        )


def check_stages(job: JobConfig) -> None:
    parallel, layers = job.parallel, job.model.layers
    count = parallel.pp * parallel.resolved_vp()
    if parallel.stages is not None:
        sizes = list(parallel.stages)
        if len(sizes) != count:
            refuse(
                job, "parallel.stages", sizes, f"names {len(sizes)} stages, pp x vp = {parallel.pp} x {parallel.resolved_vp()} are {count}"
            )
        if sum(sizes) != layers:
            refuse(job, "parallel.stages", sizes, f"has {sum(sizes)} layers in all, the model has {layers}")
    elif count > layers:
        most = either([f"pp = {layers // parallel.resolved_vp()}"] if layers >= parallel.resolved_vp() else ["vp = 1"])
        fault = f"makes {count} stages (vp = {parallel.resolved_vp()}), more than layers = {layers}: use {most} or less"
        refuse(job, "parallel.pp", parallel.pp, fault)


def check_data_parallel(job: JobConfig, dp: int) -> None:
    parallel = job.parallel
    if parallel.dp_shard is None:
        return
    if parallel.dp_mode == "ddp":
        fault = 'dp_mode = "ddp" shards nothing: leave dp_shard out, or use dp_mode = "zero1", "zero2" or "fsdp"'
        refuse(job, "parallel.dp_shard", parallel.dp_shard, fault)
    if dp % parallel.dp_shard:
        refuse(job, "parallel.dp_shard", parallel.dp_shard, f"does not divide dp = {dp}: use {divisors(dp)}")


def check_batch(job: JobConfig, dp: int) -> None:
    batch, unit = job.training.global_batch, dp * job.training.micro_batch
    words = f"dp x micro_batch = {dp} x {job.training.micro_batch}"
    ramp = job.training.batch_ramp
    if batch % unit:
        refuse(job, "training.global_batch", batch, f"is not a multiple of {words} = {unit}: use {multiples(unit, near=batch)}")
    if ramp is None:
        return _check_microbatches(job, batch // unit, unit, "training.global_batch")
    for key, value in (("start", ramp.start), ("increment", ramp.increment)):
        if value % unit:
            fault = f"is not a multiple of {words} = {unit}: use {multiples(unit, near=value)}"
            refuse(job, f"training.batch_ramp.{key}", value, fault)
    if ramp.start >= batch:
        refuse(job, "training.batch_ramp.start", ramp.start, f"must be less than global_batch = {batch}, to which it grows")
    if (batch - ramp.start) % ramp.increment:
        fault = f"does not lead from start = {ramp.start} to global_batch = {batch}: use {either(_steps(batch - ramp.start, unit))}"
        refuse(job, "training.batch_ramp.increment", ramp.increment, fault)
    for size in range(ramp.start, batch + 1, ramp.increment):
        _check_microbatches(job, size // unit, unit, "training.batch_ramp.start" if size == ramp.start else "training.batch_ramp.increment")
    return None


def _steps(distance: int, unit: int, most: int = 6) -> list[int]:
    """Increments that lead over the distance, each a multiple of the unit."""
    return [n for n in range(unit, distance + 1, unit) if distance % n == 0][:most]


def _check_microbatches(job: JobConfig, count: int, unit: int, key: str) -> None:
    """Whether the schedule runs with so many micro-batches a step (torch.distributed.pipelining's own rules, beforehand)."""
    parallel = job.parallel
    schedule, pp = parallel.resolved_schedule(), parallel.pp
    if pp == 1:
        return
    least = {"1f1b": pp, "dualpipev": 2 * pp}.get(schedule, 1)
    value = {"start": job.training.batch_ramp and job.training.batch_ramp.start}.get(key.rpartition(".")[2], count * unit)
    made = f"makes {count} micro-batches a step"
    if count < least:
        what = "pp" if schedule == "1f1b" else "2 pp"
        refuse(job, key, value, f"{made}, fewer than {what} = {least} stages of {schedule}: use {unit * least} or more")
    rounds = max(1, count // pp)
    if schedule in ("interleaved", "interleaved-zero-bubble") and count % rounds:
        refuse(
            job, key, value, f"{made}, which {schedule} cannot run in rounds of pp = {pp}: use {multiples(unit * pp, near=count * unit)}"
        )
