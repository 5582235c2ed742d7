"""Changes of a manifest for the fuzz of its readers: of its values, under a right sum, and of its bytes; and changes of data files."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

HUGE = (2**31, 2**63 - 1, 2**63, 2**64, 10**18, 10**30, -(10**18))
NAMES = (
    "",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    ".hidden",
    "manifest.json",
    "a\0b",
    "a\nb",
    "\udc80",
    "rank-00000.h5",
    "model/w",
    "x" * 5000,
)
TYPES = ("float32", "float64", "int32", "uint8", "bfloat16", "bool", "float77", "float32\n", "object", "O", "<f4", "complex64", "str")
MARK = "@raw:"
"""A text with this in front becomes what follows it, without quotes."""
RAW = ("1e999", "-0", "1.0", "-1e-400", "0.5", "12345678901234567890123.0", "[" * 300 + "]" * 300, "1" * 4000, '{"a":1,"a":2}', "true")


def sealed(body: bytes) -> bytes:
    """A manifest's bytes with the right sum: `body` is its line of JSON without one."""
    return body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}\n'


def unsealed(data: bytes) -> dict[str, Any]:
    raw = json.loads(data)
    del raw["xxh3_64"]
    return dict(raw)


def mutated_manifest(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """The bytes of a manifest, changed; and how, in words."""
    if rng.random() < 0.2:
        return _bytes_changed(rng, data)
    raw, words = unsealed(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        deed = rng.choice(_DEEDS)
        try:
            words.append(f"{deed.__name__.strip('_')} {deed(rng, raw)}")
        except (LookupError, TypeError, ValueError, AttributeError):  # a change before has taken away what this one would change
            words.append(f"no {deed.__name__.strip('_')}")
    body = _with_raw(json.dumps(raw, separators=(",", ":")))
    if rng.random() < 0.05:
        body, how = _with_a_key_twice(rng, body, raw)
        words.append(how)
    return sealed(body.encode("utf-8", "surrogatepass")), "; ".join(words)


def mutated_state(rng: random.Random, raw: dict[str, Any]) -> tuple[bytes, str]:
    """A manifest, unsealed, some of whose plain values are changed, sealed again; and how, in words."""
    words, held = [], {"state": raw["state"]}
    for _ in range(rng.choice((1, 1, 2))):
        where, key = rng.choice(_places(held["state"]))
        if rng.random() < 0.2:
            del where[key]
        else:
            where[key] = _value(rng, where[key])
        words.append(f"{key} = {str(held['state'])[:200]}")
    raw["state"] = held["state"]
    return sealed(_with_raw(json.dumps(raw, separators=(",", ":"))).encode("utf-8", "surrogatepass")), "; ".join(words)


def mutated_note(rng: random.Random, data: bytes) -> bytes:
    """A small file of JSON, its values changed, or its bytes changed or cut."""
    if rng.random() < 0.3:
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.5 else changed)
    held = {"all": json.loads(data)}
    for _ in range(rng.choice((1, 1, 2))):
        where, key = rng.choice(_places(held))
        where[key] = _value(rng, where[key])
    return _with_raw(json.dumps(held["all"])).encode("utf-8", "surrogatepass")


def mutated_file(rng: random.Random, path: Path, others: list[Path]) -> str:
    """Change the bytes of a data file; how, in words."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(("bit", "bit", "bit", "bytes", "zeros", "cut", "longer", "other", "turned", "structure"))
    at, count = rng.randrange(len(data) or 1), rng.choice((1, 7, 512, 5000))
    if not data:
        data += b"more"
    elif kind == "bit":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "structure":
        at = rng.randrange(min(2048, len(data)))
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        data[at : at + count] = rng.randbytes(len(data[at : at + count]))
    elif kind == "zeros":
        data[at : at + count] = bytes(len(data[at : at + count]))
    elif kind == "cut":
        del data[rng.choice((0, at, len(data) - 1)) :]
    elif kind == "longer":
        data += rng.randbytes(count)
    elif kind == "other":
        data = bytearray(rng.choice(others).read_bytes())
    else:
        data.reverse()
    path.write_bytes(data)
    return f"{path.name}: {kind} at {at} ({count})"


def _bytes_changed(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    changed, words = bytearray(data), []
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(changed)), rng.randrange(4)
        words.append(f"byte {at}, kind {kind}")
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at : at + rng.randrange(3)] = rng.choice(
                (b"", b"0", b"9", b"-", b"[", b"]", b"{", b'"', b",", b"e", b"\xff", b"\0", b"\\u")
            )
        elif kind == 2:
            del changed[at : at + rng.choice((1, 10, 1000, len(changed)))]
        else:
            start = rng.randrange(len(changed))
            changed[at:at] = changed[start : start + rng.choice((1, 20, 400))]
        if not changed:
            break
    how = rng.randrange(3)
    if how == 0 and len(changed) > 40:
        seal = len(b',"xxh3_64":"0123456789abcdef"}\n')
        return sealed(bytes(changed[:-seal]) + b"}"), f"{'; '.join(words)}, sealed"
    return bytes(changed), "; ".join(words)


def _value(rng: random.Random, was: Any) -> Any:
    """Something in place of a value."""
    choices: list[Any] = [
        None,
        True,
        False,
        [],
        {},
        [[]],
        -1,
        0,
        1,
        *HUGE,
        *NAMES,
        *TYPES,
        MARK + rng.choice(RAW),
        [was],
        {"a": was},
        str(was),
    ]
    if isinstance(was, int):
        choices += [was + 1, was - 1, was * 2, was + 4, was + 4096, -was, float(was), was // 2, *HUGE, was + 2**32, was + 2**64] * 2
    if isinstance(was, str) and was:
        choices += [was[1:], was[:-1], was + was, was.upper(), was + "\0", was + "\n", was[:-1] + "é"] * 2
    if isinstance(was, list):
        choices += [was[:-1], was[1:], was + was, was[::-1], [*was, 0], [was] * 3, dict.fromkeys(map(str, range(len(was))))] * 2
    return rng.choice(choices)


def _places(value: Any, least: int = 0) -> list[tuple[Any, Any]]:
    """(container, key) of all that lies in it."""
    found = []
    keys: Any = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        found += _places(value[key], least)
    return found


def _anything(rng: random.Random, raw: dict[str, Any]) -> str:
    where, key = rng.choice(_places(raw))
    where[key] = _value(rng, where[key])
    return f"{key} = {str(where[key])[:60]!r}"


def _field(rng: random.Random, raw: dict[str, Any]) -> str:
    key = rng.choice([*raw])
    raw[key] = _value(rng, raw[key])
    return f"{key} = {str(raw[key])[:60]!r}"


def _in_a_row(rng: random.Random, raw: dict[str, Any]) -> str:
    """A field of a box, or a number of its offset or shape."""
    row = _row(rng, raw)
    place = rng.randrange(len(row))
    if isinstance(row[place], list) and row[place] and rng.random() < 0.7:
        i = rng.randrange(len(row[place]))
        row[place][i] = _value(rng, row[place][i])
    else:
        row[place] = _value(rng, row[place])
    return f"{place} = {str(row[place])[:60]!r}"


def _row(rng: random.Random, raw: dict[str, Any]) -> list[Any]:
    rows = [row for entry in raw["tensors"].values() for row in entry[2]]
    return rng.choice(rows)  # type: ignore[no-any-return]


def _of_an_entry(rng: random.Random, raw: dict[str, Any]) -> str:
    """A tensor's type, a number of its shape, or its list of boxes."""
    name = rng.choice([*raw["tensors"]])
    entry = raw["tensors"][name]
    what = rng.randrange(4)
    if what == 0:
        entry[0] = rng.choice(TYPES)
    elif what == 1 and entry[1]:
        i = rng.randrange(len(entry[1]))
        entry[1][i] = _value(rng, entry[1][i])
    elif what == 2:
        entry[2] = entry[2] + [copy.deepcopy(rng.choice(entry[2]))]
    else:
        entry[2].pop(rng.randrange(len(entry[2])))
    return f"{name}, {what}"


def _huge_and_empty(rng: random.Random, raw: dict[str, Any]) -> str:
    """A tensor of no elements, of dims that no memory holds."""
    name = rng.choice([*raw["tensors"]])
    shape = [rng.choice((0, *HUGE[:6])) for _ in range(rng.randint(1, 70))]
    raw["tensors"][name][1:] = [[*shape, 0], []]
    return f"{name} {len(shape)} dims"


def _moved(rng: random.Random, raw: dict[str, Any]) -> str:
    """A box's place in its file."""
    row = _row(rng, raw)
    row[3] = rng.choice((row[3] + rng.choice((-8, -4, 1, 4, 4096)), _row(rng, raw)[3], rng.choice(HUGE), rng.randrange(60_000)))
    return f"at = {row[3]}"


def _overlapping(rng: random.Random, raw: dict[str, Any]) -> str:
    """A box's offset or extent."""
    row = _row(rng, raw)
    dim, which = rng.randrange(len(row[5])), rng.choice((5, 6))
    row[which][dim] += rng.choice((-1, 1, 1, 8, 10**18))
    return f"{which}, dim {dim} = {row[which][dim]}"


def _panels(rng: random.Random, raw: dict[str, Any]) -> str:
    row = _row(rng, raw)
    row[4] = rng.choice((1, 2, 3, 8, 16, 64, 128, -8, 10**18, 0, True))
    return f"panel = {row[4]}"


def _rows_swapped(rng: random.Random, raw: dict[str, Any]) -> str:
    """Two boxes have each other's place, file or coordinates."""
    one, other = _row(rng, raw), _row(rng, raw)
    for i in rng.choice(((0,), (3,), (0, 3), (5,), (6,), (5, 6), (4,), range(7))):
        one[i], other[i] = other[i], one[i]
    return "places"


def _named_anew(rng: random.Random, raw: dict[str, Any]) -> str:
    """A tensor, or a file, has another name; all stay in their order."""
    of = rng.choice(("tensors", "files", "state"))
    name, to = rng.choice([*raw[of]]), rng.choice((*NAMES, *raw[of]))
    raw[of] = {(to if key == name else key): value for key, value in raw[of].items()}
    return f"{of}: {name} as {to[:40]!r}"


def _taken_away(rng: random.Random, raw: dict[str, Any]) -> str:
    where, key = rng.choice(_places(raw))
    del where[key]
    return f"{key}"


def _added(rng: random.Random, raw: dict[str, Any]) -> str:
    of = rng.choice(("tensors", "files", "state", ""))
    place = raw[of] if of else raw
    name, value = rng.choice(NAMES), copy.deepcopy(rng.choice([*place.values()]))
    place[name] = value
    return f"{of}: {name[:40]!r}"


def _of_a_file(rng: random.Random, raw: dict[str, Any]) -> str:
    """Its size, its sums, or all of it."""
    name = rng.choice([*raw["files"]])
    one, what = raw["files"][name], rng.randrange(6)
    if what == 0:
        one[0] = _value(rng, one[0])
    elif what == 1:
        one[1] = _value(rng, one[1])
    elif what == 2:
        i = rng.randrange(len(one[1]))
        one[1] = one[1][:i] + rng.choice("0123456789abcdefABCDEFx\0é") + one[1][i + 1 :]
    elif what == 3:
        one[0] = 10**15 + rng.randrange(9)
        one[1] = one[1][:16] * (-(-one[0] // 10**14) if rng.random() < 0.5 else 1)
        raw["chunk_bytes"] = rng.choice((10**14, 10**18, raw["chunk_bytes"]))
    elif what == 4:
        raw["files"] = dict(reversed(raw["files"].items()))
    else:
        one[1] = one[1][16:] + one[1][:16]
    return f"{name}, {what}"


def _chunks(rng: random.Random, raw: dict[str, Any]) -> str:
    """The size of chunks, with as many sums as that asks for, or as there were; one chunk for each file where that is right."""
    raw["chunk_bytes"] = rng.choice((1, 2, 4095, 4097, 8192, 1 << 20, 1 << 33, 10**18, 10**30, 0, -1))
    if rng.random() < 0.6 and raw["chunk_bytes"] > 0:
        for one in raw["files"].values():
            one[1] = (one[1][:16] * min(-(-one[0] // raw["chunk_bytes"]), 100_000))[:1_600_000]
    return f"{raw['chunk_bytes']}"


def _version(rng: random.Random, raw: dict[str, Any]) -> str:
    raw["v"] = rng.choice((0, 1, 3, -1, 10**30, True, None, "2", MARK + "2.0", [2]))
    if rng.random() < 0.5:
        raw.pop("t", None)
    return f"{raw['v']}"


def _with_raw(text: str) -> str:
    for raw in RAW:
        text = text.replace(json.dumps(MARK + raw), raw)
    return text.replace(f'"{MARK}2.0"', "2.0")


def _with_a_key_twice(rng: random.Random, body: str, raw: dict[str, Any]) -> tuple[str, str]:
    """A key that comes twice, with two values."""
    keys = [*raw, *(raw["tensors"] if isinstance(raw.get("tensors"), dict) else ())]
    key = json.dumps(rng.choice(keys))
    value = rng.choice(("0", "null", "[]", "{}", '"x"', "-1", '["float32",[],[]]'))
    return body.replace(f"{key}:", f"{key}:{value},{key}:", 1), f"{key[:40]} twice"


_DEEDS: tuple[Callable[[random.Random, dict[str, Any]], str], ...] = (
    _anything,
    _anything,
    _field,
    _in_a_row,
    _in_a_row,
    _in_a_row,
    _of_an_entry,
    _of_an_entry,
    _huge_and_empty,
    _moved,
    _moved,
    _overlapping,
    _panels,
    _rows_swapped,
    _named_anew,
    _taken_away,
    _added,
    _of_a_file,
    _of_a_file,
    _chunks,
    _version,
)
