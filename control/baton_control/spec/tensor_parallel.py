"""Degrees of tensor parallelism: how many ranks may share the model of one worker.

Which degrees a model allows is in `baton_wire.models.sharding.degrees`.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from baton_control.spec.resource_quantities import AllowedValues

DEGREES: Final = (1, 2, 4, 8)
ONE_OF_DEGREES: Final = "1, 2, 4 or 8"
Degree = Annotated[int, Field(ge=1, le=8), AllowedValues(ONE_OF_DEGREES)]
RANKS_NEED_TCP: Final = "several ranks with an accelerator hand KV over by TCP, so Auto or TCP"
"""Their memory is that of other processes than the worker's own, which cannot register it with UCX."""
