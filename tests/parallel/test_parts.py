"""Parts of local parameters: over all ranks of any layout they tile every global tensor, and of copies one rank owns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.boxes import tiling_fault
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.names import global_shapes
from slurmtrain.parallel.parts import shard_rows, stage_layouts, vocabulary

SHAPE = {"layers": 4, "hidden": 24, "heads": 8, "kv_heads": 4, "head_dim": 6, "ffn": 24, "vocab": 37, "max_positions": 10}
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")


def model_of(family="llama", **change):
    return ModelConfig.model_validate({**SHAPE, "family": family, **change})


def all_ranks(model, tp, pp, shards):
    """(tp index, {name: layout}) of every rank."""
    each = model.layers // pp
    for p in range(pp):
        for t in range(tp):
            layouts = stage_layouts(model, range(p * each, (p + 1) * each), first=p == 0, last=p == pp - 1, index=t, size=tp)
            for d in range(shards):
                yield t, {name: shard_rows(layout, d, shards) for name, layout in layouts.items()}


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    shards=st.integers(1, 12),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    vocab=st.sampled_from([3, 37, 40]),
    tied=st.booleans(),
)
def test_owned_parts_tile_every_global_tensor(*, family, tp, pp, shards, kv_heads, vocab, tied):
    model = model_of(family, kv_heads=kv_heads, vocab=vocab, tied_embeddings=tied)
    shapes = global_shapes(model)
    boxes = {name: [] for name in shapes}
    for _, layouts in all_ranks(model, tp, pp, shards):
        for layout in layouts.values():
            regions = [part.region for part in layout.parts]
            assert len(set(regions)) == len(regions)
            for part in layout.parts:
                assert part.global_shape == shapes[part.name]
                assert all(0 <= a <= b <= n for (a, b), n in zip(part.region, layout.shape, strict=True))
                if layout.owned:
                    boxes[part.name].append(part.box)
    faults = {name: tiling_fault(shape, boxes[name]) for name, shape in shapes.items()}
    assert not any(faults.values()), faults


@settings(max_examples=30, deadline=None)
@given(family=st.sampled_from(FAMILIES), tp=st.sampled_from([2, 4, 8]), kv_heads=st.sampled_from([1, 2, 4, 8]), shards=st.integers(1, 5))
def test_ranks_of_one_slot_hold_the_same_parts_and_one_of_them_is_first(family, tp, kv_heads, shards):
    """What `sum_partial` adds up must be the gradients of the same elements."""
    sets = {}
    for _, layouts in all_ranks(model_of(family, kv_heads=kv_heads), tp, 1, shards):
        for name, layout in layouts.items():
            if layout.copies is not None:
                assert 0 <= layout.copies.slot < layout.copies.slots
                sets.setdefault((name, layout.copies.slot), []).append(layout)
    for (name, _), members in sets.items():
        sharers = len(members) // shards
        assert sharers == tp // members[0].copies.slots > 1, name
        assert sum(layout.owned for layout in members) == shards
        for d in range(shards):
            assert len({layout.parts for layout in members[d::shards]}) == 1
    alone = {name for name, _ in sets}
    assert {"layers.0.attention_norm.weight", "norm.weight"} <= alone
    assert ("layers.0.attention.kv.weight" in alone) == (tp > kv_heads)


def test_a_tied_embedding_is_counted_in_the_first_stage_alone():
    model = model_of(tied_embeddings=True)
    first = stage_layouts(model, [0, 1], first=True, last=False, index=0, size=1)["embedding.weight"]
    last = stage_layouts(model, [2, 3], first=False, last=True, index=0, size=1)["head.weight"]
    assert (first.tied, first.counted, first.owned) == (True, True, True)
    assert (last.tied, last.counted, last.owned) == (True, False, False)
    assert first.parts == last.parts
    one = stage_layouts(model, range(4), first=True, last=True, index=0, size=1)
    assert "head.weight" not in one
    assert not one["embedding.weight"].tied
    assert (shard_rows(last, 0, 2).tied, shard_rows(last, 0, 2).counted) == (True, False)


@pytest.mark.parametrize(("tp", "heights", "real"), [(1, [37], [37]), (2, [19, 19], [19, 18]), (4, [10] * 4, [10, 10, 10, 7])])
def test_head_and_embedding_hold_a_share_of_the_vocabulary(tp, heights, real):
    """A head that is whole on every rank would cost tp times the memory (picotron#23)."""
    layouts = [vocabulary("head.weight", (37, 24), index, tp) for index in range(tp)]
    assert [layout.shape[0] for layout in layouts] == heights
    assert [layout.parts[0].box.shape[0] for layout in layouts] == real


def test_a_query_head_is_where_its_kv_head_is():
    """Heads 8, kv heads 4, tp 4: rank 2 has query heads 4 and 5, which read kv head 2."""
    qkv = stage_layouts(model_of(), [0], first=True, last=True, index=2, size=4)["layers.0.attention.qkv.weight"]
    assert [(part.box.offset[0] // 6, part.box.shape[0] // 6) for part in qkv.parts] == [(4, 2), (2, 1), (2, 1)]


def test_fewer_kv_heads_than_ranks_are_copied_to_neighbours():
    """Heads 8, kv heads 2, tp 4: rank 2 has query heads 4 and 5, which read kv head 1, as do those of rank 3."""
    layouts = stage_layouts(model_of("qwen2", kv_heads=2), [0], first=True, last=True, index=2, size=4)
    q, kv = layouts["layers.0.attention.q.weight"], layouts["layers.0.attention.kv.weight"]
    assert [(part.box.offset[0] // 6, part.box.shape[0] // 6) for part in (*q.parts, *kv.parts)] == [(4, 2), (1, 1), (1, 1)]
    assert (kv.copies.slots, kv.copies.slot, kv.copies.first) == (2, 1, True)
    bias = layouts["layers.0.attention.kv.bias"]
    assert (bias.shape, bias.copies, [part.box.offset for part in bias.parts]) == ((12,), kv.copies, [(6,), (6,)])


@pytest.mark.parametrize("tp", [3, 16])
def test_cuts_that_leave_a_rest_are_a_programmers_error(tp):
    with pytest.raises(AssertionError, match="does not divide"):
        stage_layouts(model_of(), [0], first=False, last=False, index=0, size=tp)
