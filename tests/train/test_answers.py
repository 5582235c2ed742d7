"""Fine-tuning on answers, documents apart: every layout as one process, evaluation under every schedule, a moving average beside.

Two documents of eight tokens make a sample, none is cut: what a document's loss is, plain code can tell by itself.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from slurmtrain.data.build import build
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.initial import initialise
from slurmtrain.runtime.seeds import seed_for
from slurmtrain.train.loop import Ending
from tests.mpi_world import run_world
from tests.train.runs import make_run
from tests.train.several import Attempt, job_of, several, tensors_of
from tests.train.solo import solo_loop, solo_world

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

T, STEPS, DECAY = 16, 4, 0.8
LAYOUTS = {
    "dp2, accumulated": ({}, 1),
    "dp2 fsdp": ({"dp_mode": "fsdp"}, 4),
    "dp2 zero1": ({"dp_mode": "zero1"}, 2),
    "tp2": ({"tp": 2}, 2),
    "cp2 ulysses": ({"cp": 2, "cp_mode": "ulysses"}, 8),
    "cp2 allgather": ({"cp": 2, "cp_mode": "allgather"}, 4),
    "pp2 zbv": ({"pp": 2, "schedule": "zbv"}, 1),
    "pp2 interleaved": ({"pp": 2, "schedule": "interleaved"}, 2),
}
"""Layout and micro-batch, of 8 sequences a step."""


def documents():
    """(prompt, response), seven characters together; very unequal answers."""
    random = np.random.default_rng(4)
    texts = ["".join(chr(ord("a") + c) for c in random.integers(0, 12, 7)) for _ in range(75)]
    return [(text[:cut], text[cut:]) for text, cut in zip(texts, random.integers(1, 7, 75), strict=True)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"prompt": prompt, "response": response}) for prompt, response in documents()]
    (folder / "answers.jsonl").write_text("\n".join(lines))
    return build([folder / "answers.jsonl"], folder / "tokens", answers=True).folder


def job(data, layout, micro_batch, ranks):
    training = {"steps": STEPS, "sequence_length": T, "micro_batch": micro_batch, "ema_decay": DECAY}
    sections = {
        "data": {"documents": "separate", "loss_on": "answers"},
        "evaluation": {"sets": {"all": str(data)}, "every_steps": 2, "first": True},
    }
    optimizer = {"lr": 1e-3, "warmup_steps": 0}
    return job_of(data, gpus=ranks, sections=sections, training=training, optimizer=optimizer, every=1, **layout)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    run = make_run(folder / "run", job(data, {}, 8, 1))
    with solo_world(folder):
        assert solo_loop(run)[1].run() == Ending("finished", STEPS)
    return run


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = {name: make_run(folder / str(number), job(data, *of, 2)) for number, (name, of) in enumerate(LAYOUTS.items())}
    for told in run_world(several, [Attempt(run.run.path) for run in made.values()], timeout_s=400).results:
        assert told == [Ending("finished", STEPS)] * len(made)
    return made


def mean_over_answers(decoder):
    """Each document by itself, its answer's tokens and its end foretold."""
    losses = []
    for prompt, response in documents():
        tokens = torch.tensor([*(prompt + response).encode(), 256])
        with torch.no_grad():
            logits = decoder(tokens[None])[0]
        losses += functional.cross_entropy(logits[:-1].double(), tokens[1:], reduction="none")[len(prompt) - 1 :].tolist()
    return sum(losses) / len(losses), len(losses)


def decoder_of(model, values):
    decoder = Decoder(model)
    decoder.load_state_dict(values)
    return decoder


def values_of(run, step, kind="model"):
    return {name.removeprefix(f"{kind}/"): x for name, x in tensors_of(run.run, step).items() if name.startswith(f"{kind}/")}


def told(run):
    return [(e["step"], e["set"], e["tokens"]) for e in run.events("eval")], [e["eval_loss"] for e in run.events("eval")]


def test_the_mean_is_that_of_the_answers_of_each_document(data, alone):
    model = job(data, {}, 8, 1).model
    first = Decoder(model)
    initialise(first, model, seed_for(1234, purpose="model"))
    expected, count = mean_over_answers(first)
    later, _ = mean_over_answers(decoder_of(model, values_of(alone, STEPS)))
    events, losses = told(alone)
    assert events == [(step, "all", count) for step in (0, 2, STEPS)]
    assert losses[0] == pytest.approx(expected, rel=1e-6)
    assert losses[-1] == pytest.approx(later, rel=1e-6)
    assert later < expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trains_and_evaluates_as_one_process(alone, runs, layout):
    run = runs[layout]
    assert len(run.steps()) == STEPS
    for one, other in zip(run.steps(), alone.steps(), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    tokens = [e["tokens"] for e in run.events("step")]
    assert tokens == [e["tokens"] for e in alone.events("step")]
    assert tokens[-1] < STEPS * 8 * 2 * 6, "a document has seven labels"
    (events, losses), (expected_events, expected) = told(run), told(alone)
    assert events == expected_events
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_moving_average_is_that_of_one_process(alone, runs, layout):
    expected, got, weights = (values_of(run, STEPS, kind) for run, kind in ((alone, "ema"), (runs[layout], "ema"), (alone, "model")))
    assert set(got) == set(expected) == set(weights)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=2e-5, msg=name)
    assert max((expected[name] - weights[name]).abs().max() for name in weights) > 1e-3, "it lies behind the weights"


def test_the_moving_average_follows_its_formula(alone):
    for step in range(2, STEPS + 1):
        before, now, weights = values_of(alone, step - 1, "ema"), values_of(alone, step, "ema"), values_of(alone, step)
        for name, value in now.items():
            torch.testing.assert_close(value, DECAY * before[name] + (1 - DECAY) * weights[name], rtol=1e-6, atol=1e-7)
