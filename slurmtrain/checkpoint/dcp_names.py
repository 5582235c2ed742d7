"""Names of tensors in PyTorch's Distributed Checkpoint, as a torch program finds them: its model's and optimiser's flattened state dicts.

    ours                                 there                                        path
    model/<name>                         model.<name>                                 model, <name>
    ema/<name>                           ema.<name>                                   ema, <name>
    optimizer/<name>/<kind>              optimizer.state.<name>.<kind>                optimizer, state.<name>.<kind>
    optimizer/<name>/momentum            optimizer.state.<name>.momentum_buffer       likewise
    (updates made so far, in `state`)    optimizer.state.<name>.step                  likewise; for AdamW and Adafactor, as torch has it
    rng/<coordinates>/<device>           rng.<coordinates>.<device>                   rng, <coordinates>, <device>
    step, tokens, state, ...             slurmtrain                                   slurmtrain: a sealed line of JSON as uint8

`path` is where `torch.distributed.checkpoint` puts it in a nested dict. Any other name stays as it is.

>>> to_dcp("optimizer/layers.0.ffn.up.weight/momentum")
'optimizer.state.layers.0.ffn.up.weight.momentum_buffer'
>>> from_dcp("optimizer.state.layers.0.ffn.up.weight.momentum_buffer"), from_dcp("optimizer.param_groups.0.lr"), from_dcp("epoch")
('optimizer/layers.0.ffn.up.weight/momentum', None, None)
"""

from __future__ import annotations

from collections.abc import Iterable

HEADER = "slurmtrain"
_OPTIMIZER = "optimizer.state."
_GROUPS = "optimizer.param_groups"
_STEP = ".step"
_THEIRS = {"momentum": "momentum_buffer"}
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
_COUNTED = ("exp_avg", "row_var", "variance")
"""States beside which torch counts the updates."""


def to_dcp(name: str) -> str:
    """The name there of one of our tensors."""
    return ".".join(path_of(name))


def path_of(name: str) -> tuple[str, ...]:
    """Where one of our tensors lies in a nested dict."""
    root, _, rest = name.partition("/")
    if root in ("model", "ema") and rest:
        return root, rest
    if root == "rng" and rest.count("/") == 1:
        return root, *rest.split("/")
    if root == "optimizer" and "/" in rest:
        parameter, _, kind = rest.rpartition("/")
        return root, f"state.{parameter}.{_THEIRS.get(kind, kind)}"
    return (name,)


def from_dcp(name: str) -> str | None:
    """Our name of a tensor there; None for what is none of ours: the header, counts of updates, hyper-parameters, anything else."""
    root, _, rest = name.partition(".")
    if "/" in name:
        return name
    if root in ("model", "ema") and rest:
        return f"{root}/{rest}"
    if root == "rng" and rest.count(".") == 1:
        return f"{root}/{rest.replace('.', '/')}"
    if name.startswith(_OPTIMIZER) and not name.endswith(_STEP):
        parameter, _, kind = name.removeprefix(_OPTIMIZER).rpartition(".")
        return f"optimizer/{parameter}/{_OURS.get(kind, kind)}" if parameter else None
    return None


def is_step(name: str) -> bool:
    """Whether a tensor there counts the updates of a parameter."""
    return name.startswith(_OPTIMIZER) and name.endswith(_STEP)


def is_hyper(name: str) -> bool:
    """Whether it is one of the optimiser's hyper-parameters, which are the configuration's here."""
    return name.startswith(_GROUPS)


def steps_of(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Paths of the counts of updates that belong to the optimiser states among our names."""
    split = [name.split("/") for name in names if name.startswith("optimizer/")]
    return list(dict.fromkeys(("optimizer", f"state.{one[1]}{_STEP}") for one in split if len(one) == 3 and one[2] in _COUNTED))
