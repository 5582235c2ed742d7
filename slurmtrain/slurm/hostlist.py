"""Host lists: `n[001-003],gpu7` to names and back, by ClusterShell's NodeSet, in the order and form that Slurm knows.

>>> expand("a,b[001,003],c-[1-2]")
('a', 'b001', 'b003', 'c-1', 'c-2')
>>> fold(["n3", "n1", "n2", "login"])
'login,n[1-3]'
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet, NodeSetException
from ClusterShell.NodeUtils import GroupResolver

from slurmtrain.errors import SlurmError

_ALLOWED = re.compile(r"[A-Za-z0-9._,\[\]-]*")
"""ClusterShell reads more than Slurm does (@groups, !, &, ^, /step): none of it may reach it."""
_COMMA_OUTSIDE = re.compile(r",(?![^\[]*\])")
_ONE_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]+)\]([^\[\]]*)")
_NO_GROUPS = GroupResolver(default_source=None)


def expand(text: str) -> tuple[str, ...]:
    """The names of a host list, each once, in the order of `scontrol show hostnames`; empty text has none.

    Raises SlurmError for what is not a host list.
    """
    names: dict[str, None] = {}
    for piece in _pieces(text.strip()):
        names.update(dict.fromkeys(_names(piece, text)))
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """The names as one host list that every Slurm reads, sorted as ClusterShell sorts.

    Brackets stand at the end of a name alone: Slurm refuses `n[1-2]-ib0`, which ClusterShell would write.
    """
    given = list(dict.fromkeys(names))
    for name in given:
        if not _ALLOWED.fullmatch(name) or "," in name or "[" in name or not name:
            raise SlurmError(f"{name!r} is not a host name: letters, digits, dots, dashes and underscores only")
    plain = sorted(name for name in given if not name[-1].isdigit())
    numbered = NodeSet(autostep=None, resolver=_NO_GROUPS, fold_axis=(-1,))
    for name in given:
        if name[-1].isdigit():
            numbered.add(name)
    return ",".join([*plain, str(numbered)] if len(numbered) else plain)


def _pieces(text: str) -> list[str]:
    """Split at the commas outside brackets, and `n[3,1-2]` into `n[3]`, `n[1-2]`: ClusterShell would sort them."""
    found: list[str] = []
    for piece in (p.strip() for p in _COMMA_OUTSIDE.split(text)):
        one = _ONE_BRACKET.fullmatch(piece)
        if one is None:
            found.append(piece)
        else:
            found.extend(f"{one[1]}[{part}]{one[3]}" for part in one[2].split(","))
    return [piece for piece in found if piece]


def _names(piece: str, text: str) -> list[str]:
    if not _ALLOWED.fullmatch(piece):
        raise SlurmError(f"{text!r} is not a host list: unknown characters")
    try:
        return [str(name) for name in NodeSet(piece, resolver=_NO_GROUPS)]
    except NodeSetException as error:
        raise SlurmError(f"{text!r} is not a host list: {error}") from error
