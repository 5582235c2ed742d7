"""What all configuration models share: frozen, no unknown keys, values checked when built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 1
"""Of job.json, site.json and plan.json; release n reads n-2 on."""

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Frozen(BaseModel):
    """A model that never changes after it is built and knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def lacking(cls, values: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG003 of models with such rules
        """Keys that must be there because of what else is, or is not; of the model itself, not of its sections."""
        return ()
