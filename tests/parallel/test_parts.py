"""Parts of local parameters: over all ranks of any layout they tile every global tensor, and of copies one rank owns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.boxes import tiling_fault
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.names import global_shapes
from slurmtrain.parallel.buckets import bucket_plan
from slurmtrain.parallel.parts import Layout, shard_rows, stage_layouts, vocabulary

MODEL = ModelConfig(layers=4, hidden=24, heads=8, kv_heads=4, head_dim=6, ffn=20, vocab=37)


def all_ranks(model, tp, pp, dp, *, fsdp):
    """((tp, pp, dp), {name: layout}) of every rank."""
    each = model.layers // pp
    for p in range(pp):
        for t in range(tp):
            layouts = stage_layouts(model, range(p * each, (p + 1) * each), first=p == 0, last=p == pp - 1, index=t, size=tp)
            for d in range(dp):
                if fsdp:
                    held = {name: shard_rows(layout, d, dp) for name, layout in layouts.items()}
                else:
                    held = {name: Layout(x.shape, x.parts, x.copies | {"dp"}) for name, x in layouts.items()}
                yield {"tp": t, "pp": p, "dp": d}, held


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from([(3, False), (37, False), (40, True)]),
)
def test_owned_parts_tile_every_global_tensor(tp, pp, dp, fsdp, words):
    vocab, tied = words
    model = MODEL.model_copy(update={"vocab": vocab, "tied_embeddings": tied and pp == 1})
    boxes = {name: [] for name in global_shapes(model)}
    for place, layouts in all_ranks(model, tp, pp, dp, fsdp=fsdp):
        for layout in layouts.values():
            regions = [part.region for part in layout.parts]
            assert len(set(regions)) == len(regions)
            for part in layout.parts:
                assert part.global_shape == global_shapes(model)[part.name]
                assert all(0 <= a <= b <= n for (a, b), n in zip(part.region, layout.shape, strict=True))
                if layout.owned(place.__getitem__):
                    boxes[part.name].append(part.box)
    faults = {name: tiling_fault(shape, boxes[name]) for name, shape in global_shapes(model).items()}
    assert not any(faults.values()), faults


@pytest.mark.parametrize(("tp", "heights", "real"), [(1, [37], [37]), (2, [19, 19], [19, 18]), (4, [10] * 4, [10, 10, 10, 7])])
def test_head_and_embedding_hold_a_share_of_the_vocabulary(tp, heights, real):
    """A head that is whole on every rank would cost tp times the memory (picotron#23)."""
    layouts = [vocabulary("head.weight", (37, 24), index, tp) for index in range(tp)]
    assert [layout.shape[0] for layout in layouts] == heights
    assert [layout.parts[0].box.shape[0] for layout in layouts] == real


def test_a_query_head_is_where_its_kv_head_is():
    """Heads 8, kv heads 4, tp 4: rank 2 has query heads 4 and 5, which read kv head 2."""
    qkv = stage_layouts(MODEL, [0], first=True, last=True, index=2, size=4)["layers.0.attention.qkv.weight"]
    assert [(part.box.offset[0] // 6, part.box.shape[0] // 6) for part in qkv.parts] == [(4, 2), (2, 1), (2, 1)]


def test_what_does_not_divide_is_a_programmers_mistake():
    with pytest.raises(AssertionError, match=r"attention.k.weight: 24 does not divide by 16"):
        stage_layouts(MODEL, [0], first=True, last=True, index=0, size=16)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60))
def test_buckets_hold_each_gradient_once_last_first(sizes, limit):
    plan = bucket_plan(sizes, limit)
    assert [index for bucket in plan for index in bucket] == list(reversed(range(len(sizes))))
    assert all(sum(sizes[i] for i in bucket) <= limit or len(bucket) == 1 for bucket in plan)
