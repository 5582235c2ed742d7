"""A checkpoint in PyTorch's format, read by torch itself."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.dcp import to_dcp
from slurmtrain.checkpoint.dcp_read import look, take
from slurmtrain.checkpoint.expected import of_checkpoint
from slurmtrain.checkpoint.rewrite import reshard
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, UserError
from slurmtrain.store.verify import read_manifest
from tests.checkpoint.foreign import contents, every_kind, same
from tests.checkpoint.stored import cut_columns, flip, store
from tests.fakes.syscalls import Cut, FakeSyscalls, Refusal
from tests.models.peers import noisy, shape

FORMAT_1 = Path(__file__).parent / "releases" / "format-1" / "step-00000040"
STATE = {"v": 1, "position": 96, "optimizer_updates": 3, "seed": 1}
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def torch_reads(folder, target):
    """The whole of it as torch's own conversion has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(folder, target)
    return torch.load(target, weights_only=True)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module")
def kinds():
    return every_kind(np.random.default_rng(6))


@pytest.fixture(scope="module")
def source(tmp_path_factory, kinds):
    folder = tmp_path_factory.mktemp("dcp") / "source"
    return folder, store(folder, 9, kinds, files=3, cut=cut_columns, state=STATE)


@pytest.mark.parametrize("sizing", [Sizing(files=1), Sizing(files=5), Sizing(most_bytes=600_000)], ids=str)
def test_torch_reads_every_bit(tmp_path, source, kinds, sizing):
    told = []
    done = to_dcp(*source, tmp_path / "out", sizing, advance=told.append)
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [".metadata", *sorted(f"__0_{i}.distcp" for i in range(done.files))]
    assert done.files == (sizing.files or done.files)
    assert done.files > 1 or sizing.files == 1
    tree = torch_reads(tmp_path / "out", tmp_path / "all.pt")
    for name, (dtype, array) in kinds.items():
        root, _, rest = name.partition("/")
        if root == "optimizer":
            rest = "state." + rest.replace("/", ".")
        tensor = tree["rng"]["pp0-dp0-ep0-cp0-tp0"]["cpu"] if root == "rng" else tree[root][rest]
        assert str(tensor.dtype) == f"torch.{dtype}", name
        assert tuple(tensor.shape) == array.shape, name
        assert bits(tensor) == array.tobytes(), name
    assert done.bytes == sum(array.nbytes for _, array in kinds.values())
    assert sum(told) == done.bytes + len(tree["slurmtrain"]) + 4, "the header, and one count of updates"


def test_what_is_no_tensor_of_ours_lies_beside_them(tmp_path, source):
    to_dcp(*source, tmp_path / "out", Sizing(files=2))
    tree = torch_reads(tmp_path / "out", tmp_path / "all.pt")
    assert sorted(tree) == ["ema", "model", "optimizer", "rng", "slurmtrain"]
    header = json.loads(bytes(tree["slurmtrain"].tolist()))
    assert header["state"] == STATE
    assert (header["step"], header["tokens"]) == (9, 72)
    step = tree["optimizer"]["state.wide.step"]
    assert (step.dtype, step.shape, float(step)) == (torch.float32, (), 3.0), "as torch.optim.AdamW has it"


def test_large_tensors_are_several_parts_and_files_are_alike(tmp_path, source):
    to_dcp(*source, tmp_path / "out", Sizing(files=4))
    metadata = torch_checkpoint.FileSystemReader(tmp_path / "out").read_metadata()
    parts = metadata.state_dict_metadata["optimizer.state.wide.exp_avg"].chunks
    assert len(parts) > 1
    assert sum(part.sizes[0] for part in parts) == 1024
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.distcp")]
    assert max(sizes) < 1.6 * sum(sizes) / 4


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(len(steps))
    for _ in steps:
        tokens = torch.randint(0, 64, (2, 16), generator=generator)
        model(tokens).float().logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def torch_program(seed):
    model = noisy(shape({}), seed)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def test_a_torch_program_takes_it_and_goes_on_as_if_it_had_never_stopped(tmp_path):
    one, of_one = torch_program(3)
    train(one, of_one, range(3))
    tensors = {f"model/{name}": p.detach().numpy().copy() for name, p in one.named_parameters()}
    for name, parameter in one.named_parameters():
        for kind in ("exp_avg", "exp_avg_sq"):
            tensors[f"optimizer/{name}/{kind}"] = of_one.state[parameter][kind].numpy().copy()
    to_dcp(tmp_path / "source", store(tmp_path / "source", 3, tensors, files=2, state=STATE), tmp_path / "out", Sizing(files=2))

    other, of_other = torch_program(4)
    values = {"model": get_model_state_dict(other), "optimizer": get_optimizer_state_dict(other, of_other, options=FLAT)}
    hyper = {name: values["optimizer"].pop(name) for name in list(values["optimizer"]) if name.startswith("param_groups.")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_checkpoint.load(values, checkpoint_id=tmp_path / "out")
    set_model_state_dict(other, values["model"])
    set_optimizer_state_dict(other, of_other, {**values["optimizer"], **hyper}, options=FLAT)

    for pair in ((one, of_one), (other, of_other)):
        train(*pair, range(2))
    assert {p.grad_fn for p in other.parameters()} == {None}
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def small(folder):
    return store(folder, 3, {"model/w": np.arange(600, dtype=np.float32), "model/v": np.arange(6, dtype=np.int64)}, state=STATE)


def test_a_changed_bit_is_named_and_nothing_is_made(tmp_path):
    manifest = small(tmp_path / "source")
    flip(tmp_path / "source" / "rank-00000.h5", manifest.tensors["model/w"].boxes[0].at + 5)
    with pytest.raises(CorruptCheckpointError, match=r"model/w.*rank-00000\.h5"):
        to_dcp(tmp_path / "source", manifest, tmp_path / "out", Sizing(files=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_cut_at_any_call_it_is_there_whole_or_not_at_all(tmp_path):
    manifest = small(tmp_path / "source")
    counting = FakeSyscalls(tmp_path)
    to_dcp(tmp_path / "source", manifest, tmp_path / "whole", Sizing(files=2), calls=counting)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    whole = 0
    for number in range(1, counting.count + 1):
        out = tmp_path / f"cut{number}"
        with pytest.raises(Cut):
            to_dcp(tmp_path / "source", manifest, out, Sizing(files=2), calls=FakeSyscalls(tmp_path, cut_at=number, torn=True))
        if out.exists():
            whole += 1
            assert {path.name: path.read_bytes() for path in out.iterdir()} == expected
    assert whole == 1, "after the rename, before its folder is durable"


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    manifest = small(tmp_path / "source")
    for name in ("__0_0.distcp", ".metadata"):
        calls = FakeSyscalls(tmp_path, refusals=[Refusal(errno.ENOSPC, calls=("pwrite",), path=name)])
        with pytest.raises(CheckpointError, match="out: No space left on device: nothing was made"):
            to_dcp(tmp_path / "source", manifest, tmp_path / "out", Sizing(files=1), calls=calls)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="out: is there already"):
        to_dcp(tmp_path / "source", manifest, tmp_path / "out", Sizing(files=1))


def test_without_a_count_of_updates_there_is_none(tmp_path):
    manifest = store(tmp_path / "source", 3, {"model/w": np.ones(3, np.float32), "optimizer/w/exp_avg": np.ones(3, np.float32)})
    to_dcp(tmp_path / "source", manifest, tmp_path / "out", Sizing(files=1))
    assert list(torch_reads(tmp_path / "out", tmp_path / "all.pt")["optimizer"]) == ["state.w.exp_avg"]


def test_a_checkpoint_of_the_first_format(tmp_path):
    manifest = read_manifest(FORMAT_1)
    to_dcp(FORMAT_1, manifest, tmp_path / "out", Sizing(files=2))
    take(look(tmp_path / "out", of_checkpoint(manifest, "it")), tmp_path / "back", Sizing(files=1), t=7.0)
    reshard(FORMAT_1, manifest, tmp_path / "other", Sizing(files=1))
    assert same(contents(tmp_path / "back"), contents(tmp_path / "other")) == []
    assert read_manifest(tmp_path / "back").t == 7.0, "the first format tells no time"


def test_a_name_that_would_not_lead_back_is_refused(tmp_path):
    manifest = store(tmp_path / "source", 3, {"epoch": np.arange(3)})
    with pytest.raises(CheckpointError, match="'epoch' has no name in PyTorch's format"):
        to_dcp(tmp_path / "source", manifest, tmp_path / "out", Sizing(files=1))


MEASURE = """
import sys, torch
from pathlib import Path
from slurmtrain.checkpoint import cuts, dcp, making
from slurmtrain.store.verify import read_manifest
cuts.MOST_BOX_BYTES = making.BATCH_BYTES = 4 << 20
source, out = Path(sys.argv[1]), Path(sys.argv[2])
most = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
torch.save(torch.ones(9), out.with_name("warm.pt"))
before = most()
dcp.to_dcp(source, read_manifest(source), out, cuts.Sizing(files=1))
print(most() - before)
"""


@pytest.mark.long
def test_the_model_is_never_in_memory(tmp_path):
    """160 MB in one file; boxes and batches are made small here."""
    tensors = {f"model/{i}": np.full((1000, 1000), i, np.float32) for i in range(40)}
    store(tmp_path / "source", 1, tensors)
    argv = [sys.executable, "-c", MEASURE, tmp_path / "source", tmp_path / "out"]
    grown = int(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout)
    assert grown < 80_000, "KiB"
