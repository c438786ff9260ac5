"""Degrees of tensor parallelism: how many ranks may share the model of one worker, and where ranks can compute.

Which degrees a model allows is in `baton_wire.models.sharding.degrees`.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from baton_control.spec.resource_quantities import AllowedValues

DEGREES: Final = (1, 2, 4, 8)
ONE_OF_DEGREES: Final = "1, 2, 4 or 8"
Degree = Annotated[int, Field(ge=1, le=8), AllowedValues(ONE_OF_DEGREES)]
RANKS_ON_ACCELERATORS: Final[bool] = False
"""True once workers on accelerators can have several ranks. Parser, rules of the API server, `baton plan` and sizing
follow it."""
ONE_RANK: Final = "must be 1 with an accelerator: several ranks compute on CPUs only"


def supported_degrees(on_accelerators: bool) -> tuple[int, ...]:
    """The degrees that a worker can have there."""
    return DEGREES if RANKS_ON_ACCELERATORS or not on_accelerators else (1,)
