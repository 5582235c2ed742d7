r"""[entry] of the job file: any script in the place of our trainer, and by what its progress is known.

Paths and their patterns are read from the run's folder. A pattern of a path is matched part by part, so that `/` never stands inside
one of its brackets:

>>> parts(r"ckpt/step_(?P<step>\d+)/\.metadata")
(('ckpt', True), ('step_(?P<step>\\d+)', False), ('.metadata', True))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from slurmtrain.config.base import Frozen, NonNegativeFloat, Positive
from slurmtrain.config.values import Line, RuleError

Convention = Literal["megatron", "torchtitan"]
StopSignal = Literal["TERM", "USR1", "USR2", "INT", "none"]
_LITERAL = re.compile(r"(?:[\w ~-]|\\?\.)+")


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0].strip():
        raise ValueError('is empty: write the words of the command, ["python", "train.py"]')
    for index, word in enumerate(words):
        if "\0" in word:
            raise RuleError("holds a NUL byte, which no command can carry", item=index)
    return words


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None


def _with_step(pattern: str) -> str:
    if "step" not in _compiled(pattern).groupindex:
        raise ValueError(r"needs a group named step: (?P<step>\d+)")
    return pattern


def _path_with_step(pattern: str) -> str:
    for part, literal in parts(_with_step(pattern)):
        if not literal:
            try:
                re.compile(part)
            except re.error:
                raise ValueError("is matched part by part, and a part of it is no regular expression: keep / out of brackets") from None
    return pattern


Command = Annotated[tuple[str, ...], AfterValidator(_command)]
LinePattern = Annotated[Line, AfterValidator(_with_step)]
"""A regular expression, searched for in a line, with a group named `step`."""
PathPattern = Annotated[Line, AfterValidator(_path_with_step)]
"""A path whose parts are regular expressions that fit whole names, one with a group named `step`."""


def parts(pattern: str) -> tuple[tuple[str, bool], ...]:
    """The parts of a path's pattern; True for a plain name, which need not be looked for among others."""
    found = ((part, _LITERAL.fullmatch(part) is not None) for part in pattern.split("/") if part)
    return tuple((part.replace("\\.", ".") if literal else part, literal) for part, literal in found)


class EntryConfig(Frozen):
    """A script that is started on every rank with torchrun's variables, and supervised like our own trainer."""

    command: Command
    """`python` as its first word is the run's interpreter; {run} and {checkpoints} stand for these folders in any word."""
    convention: Convention | None = None
    """By whose habits the keys below are filled in where they are left out."""
    steps: Positive | None = None
    """How many steps it will make; for `status` alone."""
    progress: LinePattern | None = None
    """Of lines of its output; other named groups (loss, lr, ...) are told with the step. A group `steps`: how many it will make."""
    progress_rank: Literal["first", "last"] | None = None
    """Whose output is read."""
    progress_files: PathPattern | None = None
    """Files that tell the step by their names."""
    checkpoint: PathPattern | None = None
    """What counts as durable progress: a file or folder of this name is a checkpoint from which the script goes on."""
    newest_file: Line | None = None
    """The same by the content of a file: the step of the newest checkpoint."""
    stop_signal: StopSignal | None = None
    """By what the script is told to save and leave."""
    ranks_per_node: Positive | None = None
    """Default: one for each GPU."""
    silent_s: NonNegativeFloat = 1800.0
    """Where `progress` tells of steps: how long the script may print nothing before it counts as hanging; 0: for ever."""
    mpi: bool = False
    """The script itself starts MPI."""

    def resolved(self) -> EntryConfig:
        """With its convention's values, and the defaults, for all that was left out."""
        base: dict[str, Any] = {"progress_rank": "first", "stop_signal": "TERM", **CONVENTIONS.get(self.convention or "", {})}
        return self.model_copy(update={key: value for key, value in base.items() if getattr(self, key) is None})


CONVENTIONS: Mapping[str, Mapping[str, str]] = {
    "megatron": {
        "progress": r"\biteration\s+(?P<step>\d+)/\s*(?P<steps>\d+)(?:.*?\blm loss: (?P<loss>[-+.\deE]+))?",
        "progress_rank": "last",
        "newest_file": "checkpoints/latest_checkpointed_iteration.txt",
    },
    "torchtitan": {
        "progress": r"(?<!validate )\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>[-+.\deE]+)(?:\s+grad_norm:\s*(?P<grad_norm>[-+.\deE]+))?",
        "checkpoint": r"outputs/checkpoint/step-(?P<step>\d+)/\.metadata",
    },
}
"""Megatron-LM (training.py, checkpointing.py): the last rank prints, `--exit-signal-handler` saves on TERM and leaves with 0,
`latest_checkpointed_iteration.txt` of the folder given by --save names the newest. torchtitan 0.3.0 (metrics.py, dcp.py): rank 0 prints,
folders step-N are complete with DCP's .metadata; --dump_folder is {run}/outputs; no signal of its own."""
