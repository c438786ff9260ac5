"""Scalar types of the API: names, durations, sizes and rates, each with the sentence that says what is allowed.

A quantity is text in a manifest and a plain number in Baton: durations become seconds, sizes bytes, rates bytes per
second. The bounds of a field are in `api`, with the field.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Annotates a type with what it allows, in words that fit after "must be"."""

    text: str


@dataclass(frozen=True, slots=True)
class Quantity(Allowed, Generic[Number]):
    """Annotates a number that a manifest writes as text with a unit."""

    name: str
    pattern: str
    """Regular expression of the whole text, for readers other than Python too."""
    units: tuple[tuple[str, float], ...]
    """Each ending of the text, with the factor that it stands for."""
    number: Callable[[float], Number]
    """Type of the number in Baton."""

    def parse(self, value: object) -> Number:
        """The number that a text means. Raises PydanticCustomError for anything else.

        >>> DURATION.parse("1.5s"), MEMORY.parse("2Ki"), RATE.parse("10GB/s")
        (1.5, 2048, 10000000000.0)
        """
        if not isinstance(value, str) or re.fullmatch(self.pattern[1:-1], value) is None:
            raise PydanticCustomError("quantity", "not a quantity")
        digits = re.match(r"[0-9.]+", value)
        assert digits is not None
        return self.number(float(digits.group()) * dict(self.units)[value[digits.end() :]])

    def show(self, value: float) -> str:
        """A number as a manifest would write it.

        >>> DURATION.show(3600), MEMORY.show(64 << 20), RATE.show(1.5e9)
        ('1h', '64Mi', '1.5GB/s')
        """
        fitting = [(factor, unit) for unit, factor in self.units if factor <= value]
        factor, unit = max(fitting, default=(1.0, ""))
        return f"{value / factor:g}{unit}"

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.parse, handler(source))


DURATION = Quantity(
    "a duration such as 500ms, 1.5s, 2m or 1h",
    "duration",
    r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h)$",
    (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)),
    float,
)
MEMORY = Quantity(
    "a size such as 512Mi or 2Gi",
    "memory",
    r"^[0-9]{1,12}(Ki|Mi|Gi|Ti)?$",
    (("", 1.0), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40)),
    int,
)
RATE = Quantity(
    "a rate such as 500MB/s or 10GB/s",
    "rate",
    r"^[0-9]{1,9}(\.[0-9]{1,3})?(MB|GB)/s$",
    (("MB/s", 1e6), ("GB/s", 1e9)),
    float,
)

Duration = Annotated[float, DURATION]
Memory = Annotated[int, MEMORY]
Rate = Annotated[float, RATE]

DeploymentName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=36),
    Allowed("1 to 36 lower-case letters, digits and '-', beginning with a letter and not ending with '-'"),
]
Label = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63),
    Allowed("1 to 63 lower-case letters, digits and '-', not beginning or ending with '-'"),
]
ObjectName = Annotated[
    str,
    StringConstraints(pattern=rf"^{_SUBDOMAIN}$", min_length=1, max_length=253),
    Allowed("an object name in the same namespace: lower-case letters, digits, '-' and '.', at most 253 characters"),
]
ServedName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$", min_length=1, max_length=128),
    Allowed("1 to 128 letters, digits and '._:/-', beginning and ending with a letter or digit"),
]
Origin = Annotated[
    str,
    StringConstraints(pattern=r"^(\*|https?://[A-Za-z0-9.\[\]:-]+)$", min_length=1, max_length=253),
    Allowed("* or http(s)://HOST[:PORT] without a path, as browsers send it"),
]
QualifiedName = Annotated[
    str,
    StringConstraints(pattern=rf"^({_SUBDOMAIN}/)?{_KEY}$", max_length=253),
    Allowed("a Kubernetes key such as example.com/tier"),
]
LabelValue = Annotated[
    str,
    StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63),
    Allowed("a label value of at most 63 letters, digits and '-_.'"),
]
AnnotationValue = Annotated[str, StringConstraints(max_length=1024), Allowed("text of at most 1024 characters")]
CpuQuantity = Annotated[
    str,
    StringConstraints(pattern=r"^[1-9][0-9]{0,5}m?$", max_length=7),
    Allowed("CPUs such as 4 or 500m, written as text"),
]
MemoryText = Annotated[
    str,
    StringConstraints(pattern=r"^[1-9][0-9]{0,11}(Ki|Mi|Gi|Ti)?$", max_length=14),
    Allowed("a size such as 512Mi or 2Gi"),
]
TimeOfDay = Annotated[
    str,
    StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5),
    Allowed("a time of day such as 08:30, quoted, from 00:00 to 23:59"),
]


class Weekday(enum.StrEnum):
    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


ResourceName = Annotated[
    str,
    StringConstraints(pattern=rf"^{_SUBDOMAIN}/{_KEY}$", max_length=253),
    Allowed("an extended resource such as nvidia.com/gpu"),
]
