"""Every schedule gives the loss and the gradients of one process, evaluates at any time, and refuses what does not fit."""

from __future__ import annotations

import traceback
from collections import Counter

import pytest
import torch
import torch.distributed as dist

from slurmtrain.config.parallel import ZERO_BUBBLE
from slurmtrain.errors import DataError
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.batch import IGNORED, StepBatch
from slurmtrain.parallel.pipeline import TORCH_NAMES, make_runner
from tests.mpi_world import gloo_group, run_world
from tests.parallel.layouts import MODEL, changed, plan_of
from tests.parallel.stand_in import HIDDEN, LENGTH, VOCAB, StandIn, named, stages_here

CPU = torch.device("cpu")
LAYERS, MICRO, SCALE = 5, 2, 0.25
COUNTS = (4, 2, 6, 4)
"""Micro-batches of the steps that one runner makes."""
UNEVEN = {1: (5,), 2: (2, 3), 4: (2, 1, 1, 1)}
FEW = {("dualpipev", 2): "dualpipev over 2 ranks: a batch makes 2 micro-batches: "}


def batch_of_count(count: int, length: int = LENGTH, *, extra: int = 0, documents: bool = True) -> StepBatch:
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(0, VOCAB, (count * MICRO + extra, length + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
    if not documents:
        return StepBatch(tokens[:, :-1].contiguous(), labels)
    positions = torch.arange(length).expand_as(labels).contiguous()
    return StepBatch(tokens[:, :-1].contiguous(), labels, positions, (tokens[:, :-1] > VOCAB // 2).long().cumsum(1))


def plan_for(schedule: str, pp: int, sizes=None, **more):
    model = changed(MODEL, layers=sum(sizes) if sizes else LAYERS)
    vp = 2 if schedule not in ("gpipe", "1f1b") else 1
    return plan_of(
        model, pp=pp, vp=vp, schedule=schedule, stages=sizes or UNEVEN[pp * vp], micro_batch=MICRO, global_batch=8 * MICRO, **more
    )


def runner_of(plan, stages, pp):
    boundary = (LENGTH, MICRO, HIDDEN)
    return make_runner(stages, plan, pp, boundary=boundary, dtype=torch.float32, device=CPU, before_backward=lambda last: None)


def pp_axis(group=None):
    group = group or dist.group.WORLD
    return Axis("pp", group, dist.get_world_size(group), dist.get_rank(group), Meter(CPU, active=False))


def refusal(function, *args):
    """The one line with which something is refused."""
    try:
        function(*args)
    except DataError as error:
        return str(error)
    return None


def received(chunks):
    """What a stage receives: of each micro-batch, forward and backward."""
    return [info for infos in (*chunks.args_recv_info.values(), *chunks.grad_recv_info.values()) for info in infos]


def one_schedule(schedule, pp, counts=COUNTS, sizes=None):
    """What this rank saw: first evaluation, steps (loss, gradients, passes by parameter, later evaluation, bubble), refusals."""
    plan = plan_for(schedule, pp.size, sizes)
    stages = stages_here(plan, pp.index)
    runner, passes = runner_of(plan, stages, pp), Counter()
    for name, parameter in named(stages).items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: passes.update([name]))
    answers = {"first": runner.evaluate(batch_of_count(3)).item(), "bubble before": runner.take_bubble(), "steps": []}
    for count in counts:
        batch = batch_of_count(count)
        if (schedule, count) in FEW:
            answers["few"] = refusal(runner.train, batch, SCALE)
            continue
        passes.clear()
        loss = runner.train(batch, SCALE)
        gradients = {name: parameter.grad.clone() for name, parameter in named(stages).items()}
        for parameter in named(stages).values():
            parameter.grad = None
        bubble = runner.take_bubble()
        later = runner.evaluate(batch).item()
        answers["steps"].append((count, loss, gradients, dict(passes), bubble, later))
    answers["training"] = all(stage.training for stage in stages)
    answers["buffers"] = sum(info.buffer is not None for chunks in runner._chunks for info in received(chunks))
    answers["refused"] = [
        refusal(runner.train, batch_of_count(3, extra=1), SCALE),
        refusal(runner.evaluate, batch_of_count(3, extra=1)),
        refusal(runner.train, batch_of_count(4, length=4), SCALE),
    ]
    return answers


def two_ranks():
    torch.set_num_threads(1)
    gloo_group()
    answers = {schedule: one_schedule(schedule, pp_axis()) for schedule in TORCH_NAMES}
    return answers | {"added": added_gradients(), "dropout": dropout_losses(), "cause": local_cause()}


def added_gradients():
    """Gradients after two steps that are not cleared between, of 2 and 4 micro-batches."""
    plan = plan_for("1f1b", 2)
    stages = stages_here(plan, dist.get_rank())
    runner = runner_of(plan, stages, pp_axis())
    for count in (2, 4):
        runner.train(batch_of_count(count), SCALE)
    return {name: parameter.grad for name, parameter in named(stages).items()}


def dropout_losses():
    """(evaluated, trained) sums of stages that drop."""
    plan = plan_for("zbv", 2)
    runner = runner_of(plan, stages_here(plan, dist.get_rank(), dropout=0.5), pp_axis())
    batch = batch_of_count(4)
    return runner.evaluate(batch).item(), runner.train(batch, SCALE).item()


class Failing(StandIn):
    def forward(self, *args, **kwargs):
        raise ZeroDivisionError("one line of a stage") from KeyError("why")


def local_cause():
    """What is told of a stage that fails; each rank alone runs a pipeline of one rank and two stages."""
    mine = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    plan = plan_for("interleaved", 1)
    stages = [StandIn((0, 1), first=True, last=False), Failing((2, 3, 4), first=False, last=True)]
    try:
        runner_of(plan, stages, Axis("pp", mine, 1, 0, Meter(CPU, active=False))).train(batch_of_count(2), SCALE)
    except ZeroDivisionError as error:
        return "".join(traceback.format_exception(error))
    return None


@pytest.fixture(scope="module")
def world():
    return run_world(two_ranks, tasks_per_node=2, timeout_s=240).results


def expected(batches, layers=LAYERS, dropout=0.0):
    """(sum of the loss, gradients of SCALE x it) of one process on whole batches."""
    stage = StandIn(range(layers), first=True, last=True, dropout=dropout)
    total = sum(stage(b.tokens_NT, b.labels_NT, b.positions_NT, b.documents_NT) for b in batches)
    (SCALE * total).backward()
    return total.item(), {name: parameter.grad for name, parameter in stage.named_parameters()}


def assert_equal_gradients(ours, theirs):
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).abs().max() <= 1e-6 * gradient.abs().max(), name


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_a_schedule_equals_one_process(world, schedule):
    """Each of several batch sizes in one runner: n = pp, 2 pp, 3 pp, and one of them again."""
    ranks = [rank[schedule] for rank in world]
    for steps in zip(*(rank["steps"] for rank in ranks), strict=True):
        loss, gradients = expected([batch_of_count(steps[0][0])])
        assert sum(step[1] for step in steps).item() == pytest.approx(loss, rel=1e-6)
        assert sum(step[1] != 0 for step in steps) == 1
        assert all(step[1].dtype == torch.float64 for step in steps)
        assert_equal_gradients(steps[0][2] | steps[1][2], gradients)
    assert len(ranks[0]["steps"]) == (3 if schedule == "dualpipev" else 4)
    assert all(("few" in rank) == (schedule == "dualpipev") for rank in ranks)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_hooks_see_every_micro_batch(world, schedule):
    """Buckets count passes: torch's own zero-bubble schedules call no hook for a weight's gradient."""
    for rank in world:
        for count, _, gradients, passes, *_ in rank[schedule]["steps"]:
            assert passes == dict.fromkeys(gradients, count)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_evaluation_before_and_after_steps(world, schedule):
    ranks = [rank[schedule] for rank in world]
    assert sum(rank["first"] for rank in ranks) == pytest.approx(expected([batch_of_count(3)])[0], rel=1e-6)
    for steps in zip(*(rank["steps"] for rank in ranks), strict=True):
        assert sum(step[-1] for step in steps) == pytest.approx(sum(step[1] for step in steps).item(), rel=1e-6)
    assert all(rank["training"] for rank in ranks)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_what_does_not_fit_is_refused_on_all_ranks(world, schedule):
    ranks = [rank[schedule] for rank in world]
    assert (
        ranks[0]["refused"]
        == ranks[1]["refused"]
        == [
            "a batch of 7 sequences does not divide into micro-batches of 2: give a multiple",
            "a batch of 7 sequences does not divide into micro-batches of 2: give a multiple",
            f"a batch of 4 tokens a sequence in a pipeline that was made for {LENGTH}: give that many",
        ]
    )
    for (name, _), words in FEW.items():
        assert name != schedule or all(words in rank["few"] for rank in ranks)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_the_bubble_is_measured(world, schedule):
    for rank in world:
        assert rank[schedule]["bubble before"] is None
        assert all(0 < step[4] < 1 for step in rank[schedule]["steps"])


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_nothing_received_outlives_its_use(world, schedule):
    """torch keeps the buffers of all micro-batches of the largest batch seen."""
    assert [rank[schedule]["buffers"] for rank in world] == [0, 0]


@pytest.mark.mpi
@pytest.mark.slow
def test_steps_add_gradients_up(world):
    """Two steps of 2 and 4 micro-batches equal one process on both batches: nothing is divided twice."""
    assert_equal_gradients(world[0]["added"] | world[1]["added"], expected([batch_of_count(2), batch_of_count(4)])[1])


@pytest.mark.mpi
@pytest.mark.slow
def test_nothing_drops_in_evaluation(world):
    evaluated, trained = (sum(rank["dropout"][i] for rank in world) for i in range(2))
    loss = expected([batch_of_count(4)])[0]
    assert evaluated == pytest.approx(loss, rel=1e-6)
    assert abs(trained - loss) > 1e-3 * loss


@pytest.mark.mpi
@pytest.mark.slow
def test_the_cause_is_raised_not_its_wrapping(world):
    for rank in world:
        assert rank["cause"].endswith("ZeroDivisionError: one line of a stage\n")
        assert "KeyError: 'why'" in rank["cause"]
        assert "RuntimeError" not in rank["cause"]
        assert "failed to run forward:" not in rank["cause"]


@pytest.mark.parametrize("vp", [1, 2])
def test_passes_in_turn(vp):
    """Without a pipeline: lengths may change, `last` comes once a step, evaluation weighs no micro-batch more than another."""
    plan = plan_of(changed(MODEL, layers=LAYERS), vp=vp, stages=UNEVEN[vp], micro_batch=MICRO, global_batch=8)
    stages, calls = stages_here(plan, 0), []
    runner = make_runner(
        stages, plan, None, boundary=(LENGTH, MICRO, HIDDEN), dtype=torch.float32, device=CPU, before_backward=calls.append
    )
    batches = [batch_of_count(4), batch_of_count(3, length=4)]
    total = sum(runner.train(batch, SCALE) for batch in batches)
    loss, gradients = expected(batches)
    assert total.item() == pytest.approx(loss, rel=1e-6)
    assert_equal_gradients({name: p.grad for name, p in named(stages).items()}, gradients)
    assert calls == [False, False, False, True, False, False, True]
    assert sum(runner.evaluate(batch) for batch in batches).item() == pytest.approx(loss, rel=1e-6)
    assert runner.take_bubble() is None
    with pytest.raises(DataError, match="7 sequences"):
        runner.train(batch_of_count(3, extra=1), SCALE)


def test_zero_bubble_schedules_are_among_those_tested():
    assert set(ZERO_BUBBLE) <= set(TORCH_NAMES)
