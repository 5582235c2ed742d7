"""`.metadata` of PyTorch's Distributed Checkpoint, read without running what it says: it is a pickle, and torch itself unpickles all of it.

Names in it mean objects without deeds, made for each file anew: torch's classes of metadata, sizes, element types, paths. Any other name
is refused. What comes out is then taken apart piece by piece; torch is not needed for it.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from slurmtrain.boxes import Box, contains, tiling_fault, whole
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, UserError, one_line

METADATA_NAME = ".metadata"
_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}
_CODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT),
    *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1),
    *(pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.EMPTY_TUPLE, pickle.TUPLE),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
    *(pickle.SETITEM, pickle.SETITEMS, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD),
)
"""Of the pickle machine: values, containers, names and calls."""
_DTYPE = re.compile(r"bool|(u?int|float|bfloat|complex|q[u]?int)\d+\w*")
_FILE_NAME = re.compile(r"[^/\\\0]+")
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")


@dataclass(frozen=True)
class SavedBox:
    """A box of a tensor, and where its bytes lie: from byte `offset` of a file, as torch.save writes a tensor."""

    box: Box
    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class SavedTensor:
    """Element type by torch's name, global shape, the boxes that tile it; those without elements are left out."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[SavedBox, ...]


@dataclass(frozen=True)
class Saved:
    """What a folder holds: tensors, and the names of things that are none, pickled one by one, which nobody reads here."""

    tensors: Mapping[str, SavedTensor]
    others: tuple[str, ...]


def read_metadata(folder: Path) -> Saved:
    """What a folder of torch.distributed.checkpoint holds.

    Raises UserError where there is none, CheckpointError for what is not read here, by name, CorruptCheckpointError for damage.
    """
    path = folder / METADATA_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "give a folder that torch.distributed.checkpoint.save made"
        raise UserError(f"{path}: {error.strerror or error}: {hint}") from error
    names = _Names(str(path))
    try:
        root = _Unpickler(data, names).load()
    except CheckpointError:
        raise
    except Exception as error:  # an unpickler may raise anything over damaged bytes
        raise CorruptCheckpointError(f"{path}: damaged: {type(error).__name__}: {one_line(str(error), 120)}") from error
    try:
        return _Reading(names, str(path)).saved(root)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise CorruptCheckpointError(f"{path}: not as torch writes it: {type(error).__name__}: {one_line(str(error), 120)}") from error


class _Names:
    """What the names in one file mean. Classes and functions are made anew, so that nothing a file does to them outlives it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._made: dict[tuple[str, str], Any] = {}

    def __call__(self, module: str, name: str) -> Any:
        key = (module, name)
        if key not in self._made:
            self._made[key] = self._meaning(module, name)
        return self._made[key]

    def _meaning(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return _inert(name)
        if module == "torch" and _DTYPE.fullmatch(name):
            return ("dtype", name)
        if module.partition(".")[0] == "pathlib" and name in _PATHS:
            return _noted("path")
        if meaning := _DEEDS.get((module, name)):
            return meaning()
        fault = f"names {module}.{name}, which is not of a checkpoint's metadata: not read, for it could do harm"
        raise CheckpointError(f"{self._where}: {fault}")


def _inert(name: str) -> type:
    """A class that keeps what it is given under `state`, whatever form that has."""

    def keep(self: Any, state: Any) -> None:
        self.state = state

    return type(name, (), {"__setstate__": keep, "state": None})


def _noted(what: str) -> Callable[..., Any]:
    """A function that keeps what it is called with."""
    return lambda *words: (what, *words)


def _size() -> type:
    return type("Size", (tuple,), {"__slots__": ()})


_DEEDS: Mapping[tuple[str, str], Callable[[], Any]] = {
    ("torch", "Size"): _size,
    ("torch.serialization", "_get_layout"): lambda: _noted("layout"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"): lambda: _noted("memory format"),
    ("collections", "OrderedDict"): lambda: OrderedDict,
}
"""What other names mean, made anew for each file."""


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler, with the codes that metadata is made of: the one in C may ask for any amount of memory over a changed bit."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _CODES}

    def __init__(self, data: bytes, names: _Names) -> None:
        super().__init__(BytesIO(data))
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        return self._names(module, name)


class _Reading:
    """Takes the unpickled objects apart; raises built-in exceptions where one is not as torch makes it."""

    def __init__(self, names: _Names, where: str) -> None:
        self._names, self._where = names, where

    def saved(self, root: Any) -> Saved:
        state = self._state(root, "Metadata")
        places = self._places(state["storage_data"])
        tensors: dict[str, SavedTensor] = {}
        others: list[str] = []
        for name, one in state["state_dict_metadata"].items():
            if type(name) is not str:
                raise TypeError(f"{name!r} is no name")
            if isinstance(one, self._class("BytesStorageMetadata")):
                others.append(name)
            else:
                tensors[name] = self._tensor(name, self._state(one, "TensorStorageMetadata"), places)
        return Saved(tensors, tuple(others))

    def _class(self, name: str, module: str = "torch.distributed.checkpoint.metadata") -> type:
        found: type = self._names(module, name)
        return found

    def _state(self, value: Any, name: str) -> dict[str, Any]:
        """The attributes of an object of a class."""
        if not isinstance(value, self._class(name)):
            raise TypeError(f"a {type(value).__name__} where a {name} should be")
        state = vars(value).get("state")
        if not isinstance(state, dict):
            raise TypeError(f"a {name} without attributes")
        return state

    def _places(self, raw: Any) -> dict[tuple[str, tuple[int, ...] | None], tuple[str, int, int]]:
        """File, offset and length by name and offset in the tensor."""
        info = self._class("_StorageInfo", "torch.distributed.checkpoint.filesystem")
        places = {}
        for key, value in raw.items():
            index = self._state(key, "MetadataIndex")
            if not isinstance(value, info):
                raise TypeError(f"a {type(value).__name__} where a place in a file should be")
            place = vars(value)["state"]
            file, offset, length = place["relative_path"], _number(place["offset"]), _number(place["length"])
            if type(file) is not str or not _FILE_NAME.fullmatch(file) or file in (".", ".."):
                raise ValueError(f"{file!r} is not the name of a file beside it")
            if place.get("transform_descriptors"):
                what = ", ".join(map(str, place["transform_descriptors"]))
                raise CheckpointError(f"{self._where}: written through an extension ({what}): save it without")
            at = index.get("offset")
            places[index["fqn"], None if at is None else _numbers(at)] = (file, offset, length)
        return places

    def _tensor(self, name: str, state: dict[str, Any], places: Mapping[Any, tuple[str, int, int]]) -> SavedTensor:
        (_, dtype), (_, layout) = self._properties(state["properties"])
        if layout != "torch.strided":
            raise CheckpointError(f"{self._where}: {name}: of layout {layout}, which is not read: save dense tensors")
        shape = _numbers(state["size"])
        boxes = []
        for chunk in state["chunks"]:
            given = self._state(chunk, "ChunkStorageMetadata")
            box = Box(_numbers(given["offsets"]), _numbers(given["sizes"]))
            if not contains(whole(shape), box):
                raise ValueError(f"{name}: a part at {box.offset} of shape {box.shape} in a tensor of shape {shape}")
            if not box.volume:
                continue
            place = places.get((name, box.offset)) or (places.get((name, None)) if box == whole(shape) else None)
            if place is None:
                raise ValueError(f"{name}: its part at {box.offset} is in no file")
            boxes.append(SavedBox(box, *place))
        if fault := tiling_fault(shape, [one.box for one in boxes]):
            raise ValueError(f"{name}: {fault}")
        return SavedTensor(dtype, shape, tuple(boxes))

    def _properties(self, value: Any) -> tuple[tuple[str, str], tuple[str, str]]:
        if not isinstance(value, self._class("TensorProperties")):
            raise TypeError(f"a {type(value).__name__} where properties of a tensor should be")
        dtype, layout, *_ = vars(value)["state"]
        if dtype[0] != "dtype" or layout[0] != "layout":
            raise TypeError("properties of a tensor without its type")
        return dtype, layout


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple):
        raise TypeError(f"{values!r} is no shape")
    return tuple(_number(value) for value in values)
