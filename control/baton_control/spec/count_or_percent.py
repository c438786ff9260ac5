"""A count, or a percentage of a pool, as Deployments write `maxSurge`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from baton_control.spec.resource_quantities import Allowed

PERCENT: Final = "^(100|[0-9]{1,2})%$"


@dataclass(frozen=True, slots=True)
class CountOrPercentField(Allowed):
    """Annotates a field that is an integer up to `most`, or a percentage as text."""

    most: int

    def parse(self, value: object) -> int | str:
        """The count, or the percentage without leading zeros. Raises PydanticCustomError for another value."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= self.most:
            return value
        if isinstance(value, str) and re.fullmatch(PERCENT[1:-1], value):
            return f"{int(value[:-1])}%"
        raise PydanticCustomError("quantity", "neither a count nor a percentage")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)


CountOrPercent = Annotated[int | str, CountOrPercentField("an integer from 0 to 64, or a percentage such as 25%", 64)]


def resolve(amount: int | str, workers: int, *, rounds_up: bool = False) -> int:
    """The number of workers that an amount means for a pool of `workers`.

    >>> resolve(2, 10), resolve("25%", 10), resolve("25%", 10, rounds_up=True)
    (2, 2, 3)
    """
    if isinstance(amount, int):
        return amount
    percent = int(amount[:-1])
    return -(-workers * percent // 100) if rounds_up else workers * percent // 100
