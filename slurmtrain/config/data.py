"""The section of the job file about the data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from slurmtrain.config.base import Frozen, NonNegative, Positive, PositiveFloat
from slurmtrain.config.values import RuleError


class DataSource(Frozen):
    """One of several sources of a mixture."""

    path: Path
    weight: PositiveFloat = 1.0
    """Share of the samples, beside the weights of the others."""


class DataConfig(Frozen):
    """Where the tokens are, and how samples are made of them."""

    path: Path | None = None
    """Folder made by `slurmtrain data build`, prefix of a Megatron .bin/.idx pair, or HDF5 file of tokens; relative to the job
    file; absolute once resolved."""
    sources: tuple[DataSource, ...] = ()
    """Several of them, in place of `path`."""
    documents: Literal["joined", "separate"] = "joined"
    """separate: positions begin anew in each document, and no token sees another document's."""
    loss_on: Literal["all", "answers"] = "all"
    """answers: only tokens that the data marks as such have a loss."""
    stage: Literal["none", "local"] = "none"
    """local: each node reads from a copy on its own disk (the site's paths.scratch)."""
    stage_bytes: Positive | None = None
    """Most that is copied to a node; default: what fits."""
    prefetch: NonNegative = 2
    """Batches made ahead of the step."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> DataConfig:
        if self.path is not None and self.sources:
            raise RuleError("says the data already: give path or sources, not both", item="path", value=str(self.path))
        if self.path is None and not self.sources:
            raise RuleError("is missing: the folder made by `slurmtrain data build`", item="path")
        return self

    @property
    def mixture(self) -> tuple[DataSource, ...]:
        """All sources; `path` is one of them."""
        return self.sources if self.path is None else (DataSource(path=self.path),)
