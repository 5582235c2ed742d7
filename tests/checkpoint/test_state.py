"""torch tensors: saved under one layout, loaded under another, bit for bit; fused and sharded local tensors by their parts."""

from __future__ import annotations

import itertools

import pytest
import torch

from slurmtrain.boxes import Box, Part, whole
from slurmtrain.checkpoint import state
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.state import load_checkpoint, save_checkpoint
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified
from tests.fakes.thread_group import run_ranks

VOCAB, HIDDEN, HEADS, FFN = 37, 48, 4, 60


def model(dtype=torch.float32) -> dict[str, torch.Tensor]:
    """A model's global tensors."""
    generator = torch.Generator().manual_seed(7)
    shapes = {
        "embed": (VOCAB, HIDDEN),
        "wq": (HIDDEN, HIDDEN),
        "wk": (HIDDEN, HIDDEN),
        "wo": (HIDDEN, HIDDEN),
        "w1": (FFN, HIDDEN),
        "norm": (HIDDEN,),
    }
    return {f"model/{name}": torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def chunk(total: int, index: int, count: int) -> tuple[int, int]:
    """FSDP's dim-0 chunk: the last may be short or empty."""
    share = -(-total // count)
    return min(index * share, total), min((index + 1) * share, total)


def plain(name: str, shape: tuple[int, ...], box: Box) -> Part:
    return Part(name, shape, box, tuple((0, n) for n in box.shape))


def shards(tensors: dict[str, torch.Tensor], tp: int, dp: int, rank: int) -> list[tuple[Part, torch.Tensor]]:
    """What a rank holds: wq and wk fused in one local tensor and cut by columns of heads over tp, wo by its second dim, the rest whole;
    then the first dim chunked over dp. Replicas over tp belong to tp rank 0."""
    t, d = rank % tp, rank // tp
    entries = []
    for name in ("model/embed", "model/norm", "model/w1"):
        if t == 0:
            shape = tuple(tensors[name].shape)
            a, b = chunk(shape[0], d, dp)
            entries.append((plain(name, shape, Box((a, *[0] * (len(shape) - 1)), (b - a, *shape[1:]))), tensors[name][a:b].clone()))
    share = HIDDEN // tp
    a, b = chunk(HIDDEN, d, dp)
    wo = Box((a, t * share), (b - a, share))
    entries.append((plain("model/wo", (HIDDEN, HIDDEN), wo), tensors["model/wo"][a:b, t * share : (t + 1) * share].contiguous()))
    rows = slice(t * share, (t + 1) * share)
    fused = torch.cat([tensors["model/wq"][rows], tensors["model/wk"][rows]])
    if d == 0:
        for i, name in enumerate(("model/wq", "model/wk")):
            box = Box((t * share, 0), (share, HIDDEN))
            entries.append((Part(name, (HIDDEN, HIDDEN), box, ((i * share, (i + 1) * share), (0, HIDDEN))), fused))
    return entries


def save(run, entries, group):
    return save_checkpoint(
        run,
        step=10,
        attempt=1,
        tokens=100,
        layout={"world": group.size},
        entries=entries,
        state={"position": 3},
        group=group,
        owner_check=lambda: None,
        keep=3,
    )


@pytest.fixture(params=["memory", "device"])
def way(request, monkeypatch):
    """How tensors are filled: where they are, or as those on a device, piece by piece through a small buffer."""
    if request.param == "device":
        monkeypatch.setattr(state, "_in_memory", lambda _: False)
        monkeypatch.setattr(state, "BOUNCE_BYTES", 1000)
    return request.param


@pytest.mark.parametrize("before, after", [((1, 1), (2, 2)), ((2, 2), (1, 1)), ((2, 3), (4, 1)), ((4, 2), (1, 7)), ((1, 8), (2, 3))])
def test_saved_under_one_layout_and_loaded_under_another(tmp_path, before, after, way):
    run, tensors = RunDir(tmp_path), model()
    run_ranks(before[0] * before[1], lambda group: save(run, shards(tensors, *before, group.rank), group))

    def load(group):
        found = newest_verified(run.checkpoints)
        expected = shards(tensors, *after, group.rank)
        blank = {}
        wanted = [(part, blank.setdefault(id(tensor), torch.full_like(tensor, -9.0))) for part, tensor in expected]
        load_checkpoint(found.folder, found.manifest, wanted)
        return all(torch.equal(got, want) for (_, got), (_, want) in zip(wanted, expected, strict=True))

    assert run_ranks(after[0] * after[1], load) == [True] * (after[0] * after[1])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(700, 800).bfloat16(),
        torch.randn(3, 5).bfloat16(),
        torch.randn(9).half(),
        torch.tensor(2.5, dtype=torch.float64),
        torch.arange(12).reshape(3, 4),
        torch.get_rng_state(),
        torch.tensor([True, False]),
        torch.randn(4, 4).to(torch.float8_e4m3fn),
        torch.randn(4, 4).to(torch.float8_e5m2),
        torch.empty(0, 3),
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.randn(6, 8).t(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_every_type_comes_back_bit_for_bit(tmp_path, tensor, way):
    run, shape = RunDir(tmp_path), tuple(tensor.shape)
    part = plain("t", shape, whole(shape))
    options = {"layout": {}, "state": {}, "group": SoloGroup(), "owner_check": lambda: None, "keep": 1}
    save_checkpoint(run, step=1, attempt=1, tokens=0, entries=[(part, tensor)], **options)
    found = newest_verified(run.checkpoints)
    back = torch.empty(shape, dtype=tensor.dtype)
    load_checkpoint(found.folder, found.manifest, [(part, back)])
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_parameter_that_needs_gradients_is_saved_and_loaded_in_place(tmp_path):
    run = RunDir(tmp_path)
    parameter = torch.nn.Parameter(torch.randn(4, 4))
    part = plain("model/p", (4, 4), whole((4, 4)))
    options = {"layout": {}, "state": {}, "group": SoloGroup(), "owner_check": lambda: None, "keep": 1}
    save_checkpoint(run, step=1, attempt=1, tokens=0, entries=[(part, parameter)], **options)
    target = torch.nn.Parameter(torch.zeros(4, 4))
    found = newest_verified(run.checkpoints)
    load_checkpoint(found.folder, found.manifest, [(part, target)])
    assert torch.equal(target, parameter)
    assert target.grad_fn is None


def test_padding_that_no_part_covers_is_left_as_it_is(tmp_path, way):
    run, tensors = RunDir(tmp_path), model()
    save(run, shards(tensors, 1, 1, 0), SoloGroup())
    found = newest_verified(run.checkpoints)
    padded = torch.full((40, HIDDEN), 5.0)
    part = Part("model/embed", (VOCAB, HIDDEN), whole((VOCAB, HIDDEN)), ((0, VOCAB), (0, HIDDEN)))
    load_checkpoint(found.folder, found.manifest, [(part, padded)])
    assert torch.equal(padded[:VOCAB], tensors["model/embed"])
    assert torch.equal(padded[VOCAB:], torch.full((3, HIDDEN), 5.0))


def test_another_type_or_shape_is_refused_naming_tensor_and_file(tmp_path):
    run, tensors = RunDir(tmp_path), model()
    save(run, shards(tensors, 1, 1, 0), SoloGroup())
    found = newest_verified(run.checkpoints)
    part = plain("model/norm", (HIDDEN,), whole((HIDDEN,)))
    with pytest.raises(CheckpointError, match=r"model/norm: float32 in .*manifest\.json, bfloat16 in this model"):
        load_checkpoint(found.folder, found.manifest, [(part, torch.zeros(HIDDEN, dtype=torch.bfloat16))])
    with pytest.raises(CheckpointError, match=r"model/norm: shape \(48,\) in .*, \(50,\) in this model"):
        load_checkpoint(found.folder, found.manifest, [(plain("model/norm", (50,), whole((50,))), torch.zeros(50))])
    with pytest.raises(CheckpointError, match="model/bias: not in"):
        load_checkpoint(found.folder, found.manifest, [(plain("model/bias", (3,), whole((3,))), torch.zeros(3))])


def test_replicas_that_all_claim_a_tensor_are_refused(tmp_path):
    run, tensors = RunDir(tmp_path), model()
    errors = run_ranks(2, lambda group: save(run, shards(tensors, 1, 1, 0), group))
    assert all("overlap" in str(one) for one in errors)
    assert not list(run.checkpoints.iterdir())


@pytest.mark.parametrize("most", [8, 24, 1000, 1 << 20])
def test_on_the_way_to_a_device_no_more_is_in_memory_than_there_is_room_for(monkeypatch, most):
    """Pieces of a few tensors, in batches: each has its place, none is longer than the room, all together are the tensors."""
    monkeypatch.setattr(state, "BOUNCE_BYTES", most)
    tensors = [torch.arange(n, dtype=dtype).reshape(shape) for n, dtype, shape in ENTRIES]
    entries = [(plain(str(i), tuple(one.shape), whole(one.shape)), one) for i, one in enumerate(tensors)]
    pieces = [piece for part, tensor in entries for piece in state._split(part, tensor, most)]
    batches = list(state._batches(pieces))
    assert [(part.name, part.box) for part, _ in pieces] == [(part.name, part.box) for batch in batches for _, part, _ in batch]
    for batch in batches:
        assert batch[-1][0] + batch[-1][2].nbytes <= most
        assert all(at + tensor.nbytes <= after for (at, _, tensor), (after, _, _) in itertools.pairwise(batch))
    for i, tensor in enumerate(tensors):
        built = torch.full_like(tensor, -1)
        for part, piece in pieces:
            if part.name == str(i):
                built[tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))] = piece
        assert torch.equal(built, tensor)


ENTRIES = [
    (60, torch.float32, (3, 4, 5)),
    (1, torch.int64, ()),
    (700, torch.int16, (700,)),
    (12, torch.float64, (12, 1)),
    (999, torch.int32, (1, 999)),
]
