"""Which tensor of a source of weights gives each tensor of a model: by name, after a job's renames; what is missing, and what is too many.

No torch; nothing is read. A tensor that is missing, or too many, is refused by its name unless the job's patterns allow it.

>>> renamed(["old.a", "old.b", "c"], {"old.*": "new.*"})
{'new.a': 'old.a', 'new.b': 'old.b', 'c': 'c'}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError
from slurmtrain.models.names import global_shapes
from slurmtrain.store.manifest import Manifest

Shape = tuple[int, ...]
MOST_NAMES = 6
MODEL = "model/"


@dataclass(frozen=True)
class Fit:
    """`found`: name of ours to the name there; `first`: ours that keep their first values; `left`: names there that are left aside."""

    found: Mapping[str, str]
    first: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What a person should know of it, behind other words; empty where all fits."""
        told = [f"; first values are kept of {named(self.first)}"] if self.first else []
        told += [f"; {named(self.left)} is left aside"] if self.left else []
        return "".join(told)


def fit(
    there: Mapping[str, Shape | None],
    expected: Mapping[str, tuple[str, Shape]],
    model: ModelConfig,
    *,
    plain: Callable[[str], str] = str,
    ignored: Callable[[str], bool] = lambda _: False,
) -> Fit:
    """`there`: names and shapes (None: not known) as they are; `expected`: ours to the name there, as `plain` makes them alike, and shape.

    `ignored`: of names that mean nothing. Raises CheckpointError: one line with the names.
    """
    known = renamed(there, model.weights_names, plain)
    found, lacking, unlike = dict[str, str](), list[str](), dict[str, str]()
    for ours, (name, shape) in expected.items():
        has = known.get(plain(name))
        if has is None:
            lacking.append(ours)
        elif there[has] not in (None, shape):
            unlike[ours] = f"{has} has shape {there[has]}, {shape} in this model"
        else:
            found[ours] = has
    used = {*found.values(), *(known[plain(expected[ours][0])] for ours in unlike)}
    left = sorted(name for key, name in known.items() if name not in used and not ignored(key))
    if unknown := [name for name in left if not _fits(name, model.weights_surplus)]:
        raise CheckpointError(f"{named(unknown)}: this {model.family} model has no such tensor (model.weights_surplus may allow it)")
    if missing := list(dict.fromkeys(expected[ours][0] for ours in lacking if not _fits(ours, model.weights_missing))):
        needed = f"no tensor {named(missing)}, which this model needs, among the {len(there)} that it holds"
        raise CheckpointError(f"{needed} (model.weights_missing may allow it)")
    if strange := [fault for ours, fault in unlike.items() if not _fits(ours, model.weights_missing)]:
        raise CheckpointError(strange[0] + (f" (and {len(strange) - 1} more)" if len(strange) > 1 else ""))
    return Fit(found, tuple(ours for ours in expected if ours not in found), tuple(left))


def fit_of_checkpoint(manifest: Manifest, model: ModelConfig) -> Fit:
    """The weights of a checkpoint as those of a model. Raises CheckpointError."""
    there = {name.removeprefix(MODEL): entry.shape for name, entry in manifest.tensors.items() if name.startswith(MODEL)}
    return fit(there, {name: (name, shape) for name, shape in global_shapes(model).items()}, model)


def renamed(there: Iterable[str], rules: Mapping[str, str], plain: Callable[[str], str] = str) -> dict[str, str]:
    """Names as they are looked for to names as they are. Raises CheckpointError where two become one, and for a rule that fits none."""
    found: dict[str, str] = {}
    idle = dict(rules)
    for name in there:
        key = plain(_by_rules(name, rules, idle))
        if key in found:
            raise CheckpointError(f"{found[key]} and {name} are both {key}: look at model.weights_names")
        found[key] = name
    if idle:
        raise CheckpointError(f"model.weights_names: {next(iter(idle))} fits no tensor there")
    return found


def named(names: Sequence[str]) -> str:
    """The names, of many the first.

    >>> named(["a", "b"]), named(list("abcdefgh"))
    ('a, b', 'a, b, c, d, e, f (and 2 more tensors)')
    """
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" (and {more} more tensor{'s' if more > 1 else ''})" if more > 0 else "")


def _by_rules(name: str, rules: Mapping[str, str], idle: dict[str, str]) -> str:
    """By the first rule that fits; `idle` loses it."""
    for rule, target in rules.items():
        head, star, tail = rule.partition("*")
        if name == rule or (star and len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)):
            idle.pop(rule, None)
            return target.replace("*", name[len(head) : len(name) - len(tail)]) if star else target
    return name


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
