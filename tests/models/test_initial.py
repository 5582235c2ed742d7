"""First values: the same bits for every cut of a tensor, other bits for another name, block or seed, the right spread."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.boxes import Box, Part
from slurmtrain.config.model import ModelConfig
from slurmtrain.models import initial
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.initial import first_values, initialise, std_of, whole_part

MODEL = ModelConfig(layers=8, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=300)
NAME = "layers.3.ffn.up.weight"
SHAPE = (96, 64)


def part_of(box: Box, name: str = NAME, shape: tuple[int, ...] = SHAPE) -> Part:
    return Part(name, shape, box, tuple((0, s) for s in box.shape))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([1, 64 * 7, 64 * 96, 1 << 20]))
def test_any_box_holds_the_bits_of_the_whole(data, block):
    before, initial.BLOCK_ELEMENTS = initial.BLOCK_ELEMENTS, block
    try:
        whole = first_values(whole_part(NAME, SHAPE), MODEL, 11)
        (a, b), (c, d) = (sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in SHAPE)
        cut = first_values(part_of(Box((a, c), (b - a, d - c))), MODEL, 11)
    finally:
        initial.BLOCK_ELEMENTS = before
    assert torch.equal(cut, whole[a:b, c:d])


def test_names_blocks_and_seeds_are_independent(monkeypatch):
    monkeypatch.setattr(initial, "BLOCK_ELEMENTS", 48 * 64)
    one = first_values(whole_part(NAME, SHAPE), MODEL, 11)
    for other in (
        first_values(whole_part("layers.4.ffn.up.weight", SHAPE), MODEL, 11),
        first_values(whole_part(NAME, SHAPE), MODEL, 12),
        one.roll(48, 0),
    ):
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert correlation.abs() < 0.06  # 6144 numbers: 4.7 standard deviations


@pytest.mark.parametrize(("name", "std"), [(NAME, 0.02), ("layers.0.ffn.down.weight", 0.005), ("layers.1.attention.o.weight", 0.005)])
def test_spread(name, std):
    values = first_values(whole_part(name, (500, 400)), MODEL, 1)
    assert std_of(name, MODEL) == pytest.approx(std)
    assert values.std().item() == pytest.approx(std, rel=0.01)
    assert abs(values.mean().item()) < std / 100


def test_norms_are_one_and_the_start_knows_nothing():
    """The loss of a new model is that of a uniform guess, ln V."""
    llama = Decoder(MODEL)
    initialise(llama, MODEL, 5)
    assert torch.equal(llama.norm.weight, torch.ones(64))
    tokens = torch.randint(0, 300, (4, 33), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(llama(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(5.704, abs=0.05)


def test_biases_are_zero_and_learned_positions_are_drawn():
    model = ModelConfig(family="gpt2", layers=1, hidden=64, heads=4, kv_heads=4, ffn=96, vocab=300, max_positions=512, tied_embeddings=True)
    gpt2 = Decoder(model)
    initialise(gpt2, model, 5)
    for name, parameter in gpt2.named_parameters():
        if name.endswith(".bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
    assert gpt2.positions.weight.std().item() == pytest.approx(0.02, rel=0.02)
