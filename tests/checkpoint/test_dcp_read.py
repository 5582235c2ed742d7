"""A checkpoint out of PyTorch's format: bits, refusals, damage, and files that mean harm."""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import struct
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_checkpoint
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.dcp import to_dcp
from slurmtrain.checkpoint.dcp_metadata import read_metadata
from slurmtrain.checkpoint.dcp_read import look, take
from slurmtrain.checkpoint.expected import Expected, of_checkpoint
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, SlurmtrainError, UserError
from slurmtrain.store.verify import read_manifest, verify
from tests.checkpoint.foreign import contents, every_kind, same
from tests.checkpoint.stored import cut_columns, store
from tests.models.peers import noisy, shape

STATE = {"v": 1, "position": 96, "optimizer_updates": 3, "seed": 1}


@pytest.fixture(scope="module")
def kinds():
    return every_kind(np.random.default_rng(7))


@pytest.fixture(scope="module")
def there(tmp_path_factory, kinds):
    """Ours, and the same in PyTorch's format."""
    folder = tmp_path_factory.mktemp("both")
    manifest = store(folder / "ours", 9, kinds, files=3, cut=cut_columns, state=STATE)
    to_dcp(folder / "ours", manifest, folder / "dcp", Sizing(files=3))
    return folder


@pytest.mark.parametrize("sizing", [Sizing(files=1), Sizing(files=4), Sizing(most_bytes=500_000)], ids=str)
def test_there_and_back_every_bit_and_value_is_the_same(tmp_path, there, kinds, sizing):
    before = read_manifest(there / "ours")
    theirs = look(there / "dcp", of_checkpoint(before, "ours"))
    told = []
    made = take(theirs, tmp_path / "back", sizing, t=5.0, advance=told.append)
    assert verify(tmp_path / "back") == []
    assert same(contents(tmp_path / "back"), kinds) == []
    for field in ("step", "attempt", "tokens", "t", "layout", "state"):
        assert getattr(made.manifest, field) == getattr(before, field), field
    assert made.notes == ()
    assert sum(told) == theirs.bytes == sum(array.nbytes for _, array in kinds.values())


def torch_saves(folder, values):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_checkpoint.save(values, checkpoint_id=folder)


def program():
    """What a torch program would save; the weights by our names are what a job of the same model expects."""
    model = noisy(shape({}), 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.arange(32).reshape(2, 16)).float().sum().backward()
    optimizer.step()
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    weights = {f"model/{name}": (tuple(p.shape), "float32") for name, p in model.named_parameters()}
    return model, optimizer, flat, Expected(weights, "job.toml")


@pytest.mark.parametrize("flattened", [True, False], ids=["flattened", "nested"])
def test_what_torch_alone_wrote_gives_its_weights(tmp_path, flattened):
    model, optimizer, flat, expected = program()
    torch_saves(
        tmp_path / "dcp", {"model": model.state_dict(), "optimizer": flat if flattened else get_optimizer_state_dict(model, optimizer)}
    )
    made = take(look(tmp_path / "dcp", expected), tmp_path / "out", Sizing(files=2), t=5.0)
    count = len(expected.kinds)
    assert made.notes == (f"torch alone wrote it, so the weights are taken, as of step 0: {2 * count} tensors left out",)
    assert (made.manifest.step, made.manifest.tokens, made.manifest.t) == (0, 0, 5.0)
    assert verify(tmp_path / "out") == []
    weights = {f"model/{name}": ("float32", p.detach().numpy()) for name, p in model.named_parameters()}
    assert same(contents(tmp_path / "out"), weights) == []


def change(values, **more):
    return {**values, **more}


WRONG = {
    "missing": (lambda v: {n: t for n, t in v.items() if n != "norm.weight"}, r"dcp has no model\.norm\.weight, which job\.toml has$"),
    "extra": (lambda v: change(v, **{"norm.bias": torch.zeros(3)}), r"dcp has model\.norm\.bias, which job\.toml has not$"),
    "renamed": (
        lambda v: {n.replace("ffn.up", "ffn.upper"): t for n, t in v.items()},
        r"no model\.layers\.0\.ffn\.up\.weight \(and \d more\), .* has model\.layers\.0\.ffn\.upper\.weight, which is none of job\.toml's$",
    ),
    "type": (
        lambda v: {n: t.bfloat16() for n, t in v.items()},
        r"model\.\S+ \(and \d+ more\) has elements of type bfloat16, float32 in job",
    ),
    "shape": (lambda v: change(v, **{"norm.weight": torch.zeros(3)}), r"model\.norm\.weight has shape \(3,\), \(\d+,\) in job\.toml$"),
    "complex": (lambda v: change(v, **{"norm.weight": torch.zeros(3, dtype=torch.complex64)}), r"model\.norm\.weight has shape"),
    "pickled": (lambda v: change(v, epoch=7), r"dcp: model\.epoch is no tensor of a checkpoint and is not read: --ignore PATTERN"),
}


@pytest.mark.parametrize("alter, says", WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_named(tmp_path, alter, says):
    model, _, _, expected = program()
    torch_saves(tmp_path / "dcp", {"model": alter(dict(model.state_dict()))})
    with pytest.raises(CheckpointError, match=says):
        look(tmp_path / "dcp", expected)


def test_keys_may_be_left_out_by_patterns(tmp_path):
    model, _, flat, expected = program()
    torch_saves(
        tmp_path / "dcp", {"model": model.state_dict(), "optimizer": flat, "lr": {"last": 3, "t": torch.ones(2)}, "extra": torch.ones(2)}
    )
    with pytest.raises(CheckpointError, match=r"lr\.last is no tensor"):
        look(tmp_path / "dcp", expected)
    with pytest.raises(CheckpointError, match=r"has lr\.t"):
        look(tmp_path / "dcp", expected, ["lr.last", "extra"])
    assert len(look(tmp_path / "dcp", expected, ["lr.*", "extra"]).tensors) == len(expected.kinds)


def test_moments_are_expected_where_ours_wrote_it(tmp_path, there):
    before = read_manifest(there / "ours")
    kinds = dict(of_checkpoint(before, "x").kinds)
    del kinds["optimizer/wide/exp_avg"]
    with pytest.raises(CheckpointError, match=r"has optimizer\.state\.wide\.exp_avg, which like has not"):
        look(there / "dcp", Expected(kinds, "like"))
    kinds["optimizer/wide/exp_avg_sq"] = ((1024, 1024), "float32")
    with pytest.raises(CheckpointError, match=r"no optimizer\.state\.wide\.exp_avg_sq, .* it has optimizer\.state\.wide\.exp_avg, "):
        look(there / "dcp", Expected(kinds, "like"))


def test_a_program_that_went_on_is_no_longer_of_the_step(tmp_path):
    weights = {"model/w": np.ones((3, 4), np.float32), "optimizer/w/exp_avg": np.ones((3, 4), np.float32)}
    manifest = store(tmp_path / "ours", 9, weights, state=STATE)
    to_dcp(tmp_path / "ours", manifest, tmp_path / "dcp", Sizing(files=1))
    expected = of_checkpoint(manifest, "ours")
    header = {"slurmtrain": torch.zeros(read_metadata(tmp_path / "dcp").tensors["slurmtrain"].shape, dtype=torch.uint8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_checkpoint.load(header, checkpoint_id=tmp_path / "dcp")
    values = {
        **header,
        "model.w": torch.ones(3, 4),
        "optimizer.state.w.exp_avg": torch.ones(3, 4),
        "optimizer.state.w.step": torch.tensor(4.0),
    }
    torch_saves(tmp_path / "on", values)
    with pytest.raises(CheckpointError, match=r"optimizer\.state\.w\.step says 4 updates, slurmtrain says 3"):
        look(tmp_path / "on", expected)
    theirs = look(tmp_path / "on", expected, ["slurmtrain"])
    assert (theirs.header.step, list(theirs.tensors)) == (0, ["model/w"])
    values["slurmtrain"][20] ^= 1
    torch_saves(tmp_path / "changed", values)
    with pytest.raises(CorruptCheckpointError, match="changed: slurmtrain"):
        look(tmp_path / "changed", expected)


def small(folder):
    """A folder with two tensors in one file, and what is expected of it."""
    manifest = store(folder / "ours", 3, {"model/w": np.arange(600, dtype=np.float32), "model/v": np.arange(6, dtype=np.int64)})
    to_dcp(folder / "ours", manifest, folder / "dcp", Sizing(files=1))
    return folder / "dcp", of_checkpoint(manifest, "ours")


class Harm:
    """Pickled, it makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def short(module: str, name: str, protocol: int, argument: str) -> bytes:
    """A pickle that calls module.name(argument)."""
    if protocol == 0:
        return f"c{module}\n{name}\n(V{argument}\ntR.".encode()
    texts = b"".join(b"\x8c" + struct.pack("B", len(one)) + one.encode() for one in (module, name))
    text = argument.encode()
    return b"\x80\x04" + texts + b"\x93\x8c" + struct.pack("B", len(text)) + text + b"\x85R."


CALLS = [
    ("os", "mkdir"),
    ("posix", "mkdir"),
    ("builtins", "eval"),
    ("builtins", "getattr"),
    ("torch", "load"),
    ("torch.serialization", "load"),
    ("torch.distributed.checkpoint.metadata", "os.mkdir"),
    ("torch.distributed.checkpoint.filesystem", "os.mkdir"),
    ("torch.distributed.checkpoint.filesystem", "Path"),
    ("collections", "OrderedDict.fromkeys"),
    ("pathlib", "Path"),
    ("pathlib", "os.mkdir"),
    ("copyreg", "_reconstructor"),
    ("slurmtrain.shell", "SystemShell"),
]


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize("module, name", CALLS, ids=[".".join(pair) for pair in CALLS])
def test_metadata_that_means_harm_is_refused_by_name(tmp_path, module, name, protocol):
    folder, expected = small(tmp_path)
    (folder / ".metadata").write_bytes(short(module, name, protocol, str(tmp_path / "made")))
    with pytest.raises(CheckpointError, match=rf"\.metadata: names {module}\.{name}, which is not of a checkpoint's metadata"):
        look(folder, expected)
    assert not (tmp_path / "made").exists()


def test_harm_deep_inside_true_metadata_is_refused(tmp_path):
    folder, expected = small(tmp_path)
    metadata = torch_checkpoint.FileSystemReader(folder).read_metadata()
    metadata.planner_data["model.w"] = Harm(tmp_path / "made")
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"names posix\.mkdir"):
        look(folder, expected)
    assert not (tmp_path / "made").exists()
    with pytest.raises(FileExistsError):  # torch's own reader runs it: the test means something
        (torch_checkpoint.FileSystemReader(folder).read_metadata(), (tmp_path / "made").mkdir())


def test_a_tensor_that_means_harm_is_not_run(tmp_path):
    folder, expected = small(tmp_path)
    data = io.BytesIO()
    torch.save(Harm(tmp_path / "made"), data)
    _put(folder, "model.w", data.getvalue())
    with pytest.raises(CorruptCheckpointError, match=r"model\.w: .*other\.distcp: at byte 0: not a tensor .*posix\.mkdir"):
        take(look(folder, expected), tmp_path / "out", Sizing(files=1), t=1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dcp", "ours"]


def _edit(folder, deed):
    """Change the metadata by torch's own classes."""
    metadata = torch_checkpoint.FileSystemReader(folder).read_metadata()
    deed(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _put(folder, name, data):
    """Other bytes where a tensor of one dim lay."""

    def move(metadata):
        place = metadata.storage_data[MetadataIndex(name, (0,))]
        place.relative_path, place.offset, place.length = "other.distcp", 0, len(data)

    _edit(folder, move)
    (folder / "other.distcp").write_bytes(data)


def _saved(tensor):
    data = io.BytesIO()
    torch.save(tensor, data)
    return data.getvalue()


OTHERS = {
    "other type": (torch.ones(600, dtype=torch.int32), r"int32 of shape \(600,\), the metadata says float32 of shape \(600,\)"),
    "other shape": (torch.ones(6), r"float32 of shape \(6,\), the metadata says"),
    "no tensor": ({"a": 1}, "not a dense tensor"),
    "sparse": (torch.ones(600).to_sparse(), "not a dense tensor"),
}


@pytest.mark.parametrize("value, says", OTHERS.values(), ids=OTHERS.keys())
def test_a_tensor_that_is_not_what_the_metadata_says(tmp_path, value, says):
    folder, expected = small(tmp_path)
    _put(folder, "model.w", _saved(value))
    with pytest.raises(CorruptCheckpointError, match=rf"model\.w: .*other\.distcp: at byte 0: {says}"):
        take(look(folder, expected), tmp_path / "out", Sizing(files=1), t=1.0)


def _chunk(metadata, name):
    return metadata.state_dict_metadata[name].chunks[0]


BROKEN = {
    "no place": (lambda m: m.storage_data.pop(MetadataIndex("model.w", (0,))), r"model\.w: its part at \(0,\) is in no file"),
    "a gap": (lambda m: setattr(_chunk(m, "model.w"), "sizes", torch.Size((599,))), r"model\.w: 1 of 600 elements are in no box"),
    "outside": (lambda m: setattr(_chunk(m, "model.w"), "sizes", torch.Size((601,))), r"model\.w: a part at \(0,\) of shape \(601,\)"),
    "negative": (lambda m: setattr(_chunk(m, "model.w"), "offsets", torch.Size((-1,))), "-1 is not a whole number"),
    "a path": (
        lambda m: setattr(m.storage_data[MetadataIndex("model.w", (0,))], "relative_path", "../x"),
        r"'\.\./x' is not the name of a file",
    ),
    "absolute": (
        lambda m: setattr(m.storage_data[MetadataIndex("model.w", (0,))], "relative_path", "/etc/passwd"),
        "'/etc/passwd' is not the name",
    ),
    "no storage": (lambda m: setattr(m, "storage_data", None), "not as torch writes it"),
    "a list": (lambda m: setattr(m, "state_dict_metadata", [1]), "not as torch writes it"),
}


@pytest.mark.parametrize("deed, says", BROKEN.values(), ids=BROKEN.keys())
def test_metadata_that_contradicts_itself(tmp_path, deed, says):
    folder, expected = small(tmp_path)
    _edit(folder, deed)
    with pytest.raises(CorruptCheckpointError, match=says):
        look(folder, expected)


def test_what_is_not_read_says_why(tmp_path):
    folder, expected = small(tmp_path)
    shutil.copytree(folder, tmp_path / "extension")
    _edit(tmp_path / "extension", lambda m: setattr(m.storage_data[MetadataIndex("model.w", (0,))], "transform_descriptors", ["zstd.1"]))
    with pytest.raises(CheckpointError, match=r"written through an extension \(zstd\.1\): save it without"):
        look(tmp_path / "extension", expected)
    with pytest.raises(UserError, match=r"nowhere/\.metadata: No such file or directory: give a folder that torch"):
        look(tmp_path / "nowhere", expected)


def test_files_that_are_missing_or_cut_off(tmp_path):
    folder, expected = small(tmp_path)
    file = folder / "__0_0.distcp"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CorruptCheckpointError, match=rf"__0_0\.distcp: cut off: {len(whole) - 1} bytes, and \S+ ends at byte {len(whole)}"):
        look(folder, expected)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: No such file or directory; \S+ lies in it"):
        look(folder, expected)


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_pile_of_damage_is_never_anything_but_an_error_or_the_same(tmp_path, count):
    folder, expected = small(tmp_path)
    right = contents(tmp_path / "ours")
    data, draw, told = (folder / ".metadata").read_bytes(), random.Random(11), set()
    before = read_metadata(folder)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 5])):
            kind, at = draw.randrange(3), draw.randrange(len(changed))
            if kind == 0:
                changed[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                del changed[at : at + draw.randint(1, 40)]
            else:
                changed[at:at] = draw.randbytes(draw.randint(1, 9))
        (folder / ".metadata").write_bytes(changed)
        try:
            theirs = look(folder, expected)
        except SlurmtrainError as error:
            told.add((type(error), "\n" in str(error)))
            continue
        if theirs.tensors != {f"model/{n.partition('.')[2]}": t for n, t in before.tensors.items() if n.startswith("model.")}:
            try:
                take(theirs, tmp_path / "out", Sizing(files=1), t=1.0)
            except SlurmtrainError:
                continue
            assert same(contents(tmp_path / "out"), right) == []
            shutil.rmtree(tmp_path / "out")
    assert (CorruptCheckpointError, False) in told
    assert not any(lines for _, lines in told)
