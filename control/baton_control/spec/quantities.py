"""Scalar types of the API: names, durations, sizes and rates, each with the sentence that says what is allowed.

A quantity is text in a manifest and a plain number in Baton: durations become seconds, sizes bytes, rates bytes per
second. The bounds of a particular field stand with that field in `api`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

DURATION_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h)$"
MEMORY_PATTERN = r"^[0-9]{1,12}(Ki|Mi|Gi|Ti)?$"
RATE_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,3})?(MB|GB)/s$"
PATTERNS = {"duration": DURATION_PATTERN, "memory": MEMORY_PATTERN, "rate": RATE_PATTERN}

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1.0, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_RATES = {"MB": 1e6, "GB": 1e9}


@dataclass(frozen=True, slots=True)
class Allowed:
    """Annotates a type with what it allows, in words that fit after "must be"."""

    text: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Annotates a quantity with how its numbers read in a manifest, so that bounds can be shown in the user's terms."""

    name: str


def _parse(value: object, pattern: str, units: dict[str, float]) -> float:
    if not isinstance(value, str) or re.fullmatch(pattern[1:-1], value) is None:
        raise PydanticCustomError("quantity", "not a quantity")
    number = re.match(r"[0-9.]+", value)
    assert number is not None
    return float(number.group()) * units[value[number.end() :].removesuffix("/s")]


def parse_duration(value: object) -> float:
    """Seconds of `500ms`, `1.5s`, `2m` or `1h`. Raises PydanticCustomError for anything else."""
    return _parse(value, DURATION_PATTERN, _SECONDS)


def parse_memory(value: object) -> int:
    """Bytes of `512Mi` or `1073741824`. Raises PydanticCustomError for anything else."""
    return int(_parse(value, MEMORY_PATTERN, _BYTES))


def parse_rate(value: object) -> float:
    """Bytes per second of `10GB/s`. Raises PydanticCustomError for anything else."""
    return _parse(value, RATE_PATTERN, _RATES)


def show_quantity(value: float, unit: str) -> str:
    """A bound as a manifest would write it: seconds → `1h`, bytes → `64Mi`, bytes per second → `1GB/s`."""
    table = {"duration": _SECONDS, "memory": _BYTES, "rate": _RATES}[unit]
    name, factor = max(((n, f) for n, f in table.items() if f <= value), key=lambda item: item[1], default=("", 1))
    return f"{value / factor:g}{name}" + ("/s" if unit == "rate" else "")


Duration = Annotated[
    float, BeforeValidator(parse_duration), Allowed("a duration such as 500ms, 1.5s, 2m or 1h"), Unit("duration")
]
Memory = Annotated[int, BeforeValidator(parse_memory), Allowed("a size such as 512Mi or 2Gi"), Unit("memory")]
Rate = Annotated[float, BeforeValidator(parse_rate), Allowed("a rate such as 500MB/s or 10GB/s"), Unit("rate")]

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
