"""RUN@STEP: which checkpoint a person means."""

from __future__ import annotations

import re

from slurmtrain.errors import UserError

_STEP = re.compile(r"[0-9]{1,18}")


def run_at_step(text: str) -> tuple[str, int | None]:
    """RUN and the step behind its @, None where none is said; an @ in a folder's name further up the path is part of it.

    Raises UserError for an @ without a run before it or a number behind it.

    >>> run_at_step("llama@300"), run_at_step("/runs/llama"), run_at_step("/me@site/llama@7"), run_at_step("/me@site/llama")
    (('llama', 300), ('/runs/llama', None), ('/me@site/llama', 7), ('/me@site/llama', None))
    """
    run, at, step = text.rpartition("@")
    if at and "/" not in step:
        if not run or not _STEP.fullmatch(step):
            raise UserError(f"{text!r} is no checkpoint: write RUN for the newest, or RUN@STEP with the number of a step")
        return run, int(step)
    if not text:
        raise UserError("an empty name is no checkpoint: write RUN for the newest, or RUN@STEP with the number of a step")
    return text, None
