"""Losses, tokens, norms and gradients under layouts in which other trainers gave other numbers than one process (docs/cases.md).

Labels are masked unevenly: the first data-parallel rank has sequences without any, so that no mean of means is right.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from slurmtrain.clock import SystemClock
from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import JobConfig, RunConfig
from slurmtrain.data.stream import evaluation_batches
from slurmtrain.errors import DataError
from slurmtrain.parallel.batch import IGNORED, StepBatch
from slurmtrain.train.evaluate import Evaluator
from slurmtrain.train.feed import step_batch
from slurmtrain.train.metrics import Figures, pack, unpack
from tests.data.token_files import write_folder
from tests.mpi_world import run_world
from tests.parallel.layouts import CPU, MODELS, SEQUENCE, batch_of, first_module, reference, share_of
from tests.train.worlds import LR, Trainer, copies_equal, start

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

CLIP = 0.1
LAYOUTS = {
    "one process": ("llama", 3, {"micro_batch": 4}),
    "dp4": ("llama", 3, {"dp": 4, "micro_batch": 2}),
    "dp2, 4 passes": ("llama", 3, {"dp": 2}),
    "dp2 cp2": ("llama", 3, {"dp": 2, "cp": 2, "micro_batch": 2}),
    "cp2": ("llama", 3, {"cp": 2, "micro_batch": 4}),
    "sp4": ("llama", 3, {"cp": 4, "cp_mode": "ulysses", "micro_batch": 4}),
    "tp2": ("qwen3", 20, {"tp": 2, "micro_batch": 4}),
    "pp2, 8 passes": ("llama", 3, {"pp": 2}),
    "pp2, 2 passes": ("llama", 3, {"pp": 2, "micro_batch": 4}),
    "pp2 zbv": ("llama", 3, {"pp": 2, "micro_batch": 2, "schedule": "zbv"}),
    "pp2 dp2, tied": ("tied", 3, {"pp": 2, "dp": 2, "dp_mode": "zero1"}),
}
"""Model, steps, layout."""
VISIBLE = {("cp2", 0): [0, 1, 2, 3, 12, 13, 14, 15], ("cp2", 1): [4, 5, 6, 7, 8, 9, 10, 11]}
VISIBLE |= {("sp4", index): list(range(4 * index, 4 * index + 4)) for index in range(4)}
VISIBLE |= {("dp2 cp2", index): VISIBLE["cp2", index] for index in range(2)}
"""Positions of a context-parallel rank; all where it is not named."""
FEW = 13 * SEQUENCE + 8
"""Tokens of 14 samples: of the second batch of 8 the last of four ranks has none."""


def batches(step, model, global_batch=8):
    return batch_of(step, model, global_batch, ignored=0.3)


def one_and_nine(model):
    """Two batches: one label in all, then nine, on three ranks of four."""
    places = [[(5, 7)], [(row, at) for row in (0, 3, 4) for at in (0, 9, 15)]]
    made = []
    for number, kept in enumerate(places):
        whole = batch_of(50 + number, model)
        labels = torch.full_like(whole.labels_NT, IGNORED)
        for row, at in kept:
            labels[row, at] = whole.labels_NT[row, at]
        made.append(StepBatch(whole.tokens_NT, labels))
    return made


def few_tokens():
    return np.random.default_rng(4).integers(0, 62, FEW).tolist()


def job_of(model, trainer, path):
    return JobConfig(run=RunConfig(name="few"), model=model, data=DataConfig(path=path), training=trainer.training)


def gradients(built):
    """(name, offset, values) of each part that this rank has."""
    parts = [(part, x.grad) for x in built.parameters for part in x.parts]
    return [(part.name, part.box.offset, grad[tuple(slice(a, b) for a, b in part.region)].clone()) for part, grad in parts]


def evaluator_of(trainer, path):
    plan, mesh, model = trainer.plan, trainer.mesh, trainer.model
    few = evaluation_batches(path, job_of(model, trainer, path), data_rank=mesh.index("data"), data_size=plan.dp)
    sets = {
        "few": lambda: (step_batch(batch, CPU) for batch in few),
        "one and nine": lambda: (share_of(batch, plan, mesh) for batch in one_and_nine(model)),
    }
    return Evaluator(trainer.built, sets, flag=trainer.flag, world=trainer.world, device=CPU, clock=SystemClock())


def one_layout(name, path):
    """What a rank saw: evaluations before, steps, clipped gradients of the first, place and loss of its own there, the largest loss."""
    kind, steps, layout = LAYOUTS[name]
    trainer = Trainer(MODELS[kind], layout, CLIP)
    if trainer.mesh is None:
        return None
    told = {"before": [(one.name, one.loss, one.tokens) for one in evaluator_of(trainer, path)()], "steps": []}
    rank, size = dist.get_rank(), trainer.plan.world
    for number in range(1, steps + 1):
        riders = pack(None if number == 1 else Figures(number - 1, loss=result.own_loss), rank, size)  # noqa: F821 of the step before
        result = trainer.step(number, share_of(batches(number, trainer.model), trainer.plan, trainer.mesh), riders)
        told["steps"].append((result.loss, result.grad_norm, result.tokens))
        if number == 1:
            told["gradients"] = gradients(trainer.built)
            told["own"] = trainer.mesh.index("data"), trainer.mesh.index("cp"), result.own_loss
        if number == 2:
            told["largest"] = unpack(result.passengers, size)["loss_max"]
    return told | {"copies": copies_equal(trainer)}


def short():
    """Sequences of 12 tokens, and the same filled up to 16 without labels."""
    batch = batch_of(2, MODELS["llama"], sequence=12)
    missing = (0, SEQUENCE - 12)
    return batch, StepBatch(functional.pad(batch.tokens_NT, missing), functional.pad(batch.labels_NT, missing, value=IGNORED))


def in_pieces():
    """Gradients of a pipeline whose step is two halves; of 16 tokens a sequence, then 12, then the 12 filled up."""
    trainer = Trainer(MODELS["llama"], {"pp": 2, "micro_batch": 2}, CLIP)
    if trainer.mesh is None:
        return None
    built, whole, (bare, filled) = trainer.built, batches(1, trainer.model), short()
    built.reducer.start(4)
    for half in whole.microbatches(2):
        built.runner.train(half, 1.0)
    built.reducer.finish()
    halves = gradients(built)
    built.reducer.start(8)
    built.runner.train(whole, 1.0)
    try:
        built.runner.train(bare, 1.0)
        refused = None
    except DataError as error:
        refused = str(error)
    built.runner.train(filled, 1.0)
    built.reducer.finish()
    return halves, refused, gradients(built)


def everything(path):
    start()
    return {name: one_layout(name, path) for name in LAYOUTS} | {"pieces": in_pieces()}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = write_folder(tmp_path_factory.mktemp("data") / "few", [few_tokens()], vocab=63, eod=62)
    return run_world(everything, path, tasks_per_node=4, timeout_s=300).results


@functools.cache
def expected(kind, steps):
    return reference(MODELS[kind], steps, clip=CLIP, lr=LR, batches=batches)


def ranks_of(world, name):
    inside = [rank[name] for rank in world if rank[name] is not None]
    layout = LAYOUTS[name][2]
    assert len(inside) == layout.get("tp", 1) * layout.get("cp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
    return inside


def token_losses(kind, batch):
    """[N, T] of the first values, 0 where there is no label."""
    module = first_module(MODELS[kind])
    with torch.no_grad():
        logits = module(batch.tokens_NT).double()
    return functional.cross_entropy(logits.transpose(1, 2), batch.labels_NT, ignore_index=IGNORED, reduction="none")


def assert_gradients(ranks, whole):
    seen = {name: torch.zeros_like(gradient, dtype=torch.bool) for name, gradient in whole.items()}
    for name, offset, ours in (part for rank in ranks for part in rank):
        place = tuple(slice(o, o + n) for o, n in zip(offset, ours.shape, strict=True))
        far = (ours - whole[name][place]).abs().max() / whole[name].abs().max()
        assert far < 5e-6, f"{name}: {far}"
        seen[name][place] = True
    assert all(mask.all() for mask in seen.values())


@pytest.mark.parametrize("name", LAYOUTS)
def test_loss_norm_and_tokens_are_those_of_one_process(world, name):
    """Tokens are counted once under cp; Ulysses does not divide by sp; copies of norms do not drift apart over 20 steps."""
    kind, steps, _ = LAYOUTS[name]
    one = expected(kind, steps)
    tokens = [int(batches(n, MODELS[kind]).valid_tokens()) for n in range(1, steps + 1)]
    for rank in ranks_of(world, name):
        assert [loss for loss, *_ in rank["steps"]] == pytest.approx(one.losses, rel=1e-5)
        assert [norm for _, norm, _ in rank["steps"]] == pytest.approx(one.norms, rel=1e-5)
        assert [count for *_, count in rank["steps"]] == tokens
        assert rank["copies"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_clipped_gradients_are_those_of_one_process(world, name):
    """One factor from one norm for all stages, shards and copies; nothing is divided by dp, cp, passes or ends of a pipeline."""
    kind, steps, _ = LAYOUTS[name]
    one = expected(kind, steps)
    assert one.norms[0] > 2 * CLIP
    factor = CLIP / (one.norms[0] + 1e-6)
    assert_gradients([rank["gradients"] for rank in ranks_of(world, name)], {n: g * factor for n, g in one.gradients.items()})


@pytest.mark.parametrize("name", LAYOUTS)
def test_validation_weighs_tokens_whatever_the_layout_and_the_passes(world, name):
    """Batches of 1 and 9 labels; 14 samples that four ranks do not share evenly."""
    kind, *_ = LAYOUTS[name]
    sums = [token_losses(kind, batch).sum().item() for batch in one_and_nine(MODELS[kind])]
    assert sum(sums) / 10 != pytest.approx((sums[0] + sums[1] / 9) / 2, rel=1e-3), "a mean of means would do"
    stream = torch.tensor(few_tokens())
    pieces = [stream[at : at + SEQUENCE + 1][None] for at in range(0, FEW - 1, SEQUENCE)]
    few = sum(token_losses(kind, StepBatch(piece[:, :-1], piece[:, 1:])).sum().item() for piece in pieces)
    for rank in ranks_of(world, name):
        (few_name, few_loss, few_count), (name_, loss, count) = rank["before"]
        assert (few_name, few_count, name_, count) == ("few", FEW - 1, "one and nine", 10)
        assert few_loss == pytest.approx(few / (FEW - 1), rel=1e-6)
        assert loss == pytest.approx(sum(sums) / 10, rel=1e-6)


@pytest.mark.parametrize("name", ["dp4", "dp2, 4 passes", "dp2 cp2", "cp2", "sp4"])
def test_the_largest_loss_is_the_largest_mean_of_a_ranks_own_tokens(world, name):
    kind, *_, layout = LAYOUTS[name]
    batch, dp = batches(1, MODELS[kind]), layout.get("dp", 1)
    losses, valid = token_losses(kind, batch).chunk(dp), (batch.labels_NT != IGNORED).chunk(dp)
    means = []
    for rank in ranks_of(world, name):
        data, cp, own = rank["own"]
        at = VISIBLE.get((name, cp), list(range(SEQUENCE)))
        means.append((losses[data][:, at].sum() / valid[data][:, at].sum()).item())
        assert own == pytest.approx(means[-1], rel=1e-6)
    assert len(set(means)) == len(means)
    assert [rank["largest"] for rank in ranks_of(world, name)] == pytest.approx([max(means)] * len(means), rel=1e-6)


def sum_gradients(*parts):
    """Of the loss summed over all tokens of the batches."""
    module = first_module(MODELS["llama"])
    for batch in parts:
        loss = functional.cross_entropy(module(batch.tokens_NT).transpose(1, 2), batch.labels_NT, ignore_index=IGNORED, reduction="sum")
        loss.backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def test_two_steps_of_four_passes_are_one_of_eight(world):
    pieces = [rank["pieces"] for rank in world if rank["pieces"]]
    assert_gradients([halves for halves, *_ in pieces], sum_gradients(batches(1, MODELS["llama"])))


def test_another_length_is_refused_and_loses_nothing(world):
    """16 and 12 tokens a sequence: the pipeline says what it was made for, on both ranks; filled up, they add up."""
    pieces = [rank["pieces"] for rank in world if rank["pieces"]]
    words = "a batch of 12 tokens a sequence in a pipeline that was made for 16: give that many"
    assert [refused for _, refused, _ in pieces] == [words] * 2
    assert_gradients([summed for *_, summed in pieces], sum_gradients(batches(1, MODELS["llama"]), short()[0]))
