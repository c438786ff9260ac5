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
from pydantic_core import CoreSchema, core_schema

from baton_control.spec.resource_quantities import BYTES, CPUS, Allowed, written

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
KEY_PATTERN = rf"^({_SUBDOMAIN}/)?{_KEY}$"

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Quantity(Allowed, Generic[Number]):
    """Annotates a number that a manifest writes as text with a unit."""

    name: str
    pattern: str
    """Regular expression of the whole text, for readers other than Python too."""
    units: tuple[tuple[str, float], ...]
    """Each ending of the text, with the factor that it stands for."""
    number: Callable[[str], Number]
    """Reads a text that the pattern matches."""
    takes_integers: bool = False
    """True: a manifest may also write a plain integer."""

    def parse(self, value: object) -> Number:
        """The number that a text means. Raises PydanticCustomError for anything else.

        >>> DURATION.parse("1m30s"), MEMORY.parse("1.5Ki"), RATE.parse("10GB/s")
        (90.0, 1536, 10000000000.0)
        """
        return self.number(written(value, self.pattern, takes_integers=self.takes_integers))

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


_SECONDS = (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0))
_BYTES_PER_S = (("MB/s", 1e6), ("GB/s", 1e9))


def _sum_of(units: tuple[tuple[str, float], ...]) -> Callable[[str], float]:
    factors = dict(units)
    return lambda text: sum(
        float(digits) * factors[unit] for digits, unit in re.findall(r"([0-9.]+)([A-Za-z/]+)", text)
    )


DURATION = Quantity(
    "a duration such as 500ms, 1.5s, 1m30s or 1h",
    "duration",
    r"^([0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h)){1,4}$",
    _SECONDS,
    _sum_of(_SECONDS),
)
MEMORY = Quantity(
    BYTES.text,
    "memory",
    BYTES.pattern,
    (("", 1.0), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40)),
    BYTES.count,
    takes_integers=True,
)
RATE = Quantity(
    "a rate such as 500MB/s or 10GB/s",
    "rate",
    r"^[0-9]{1,9}(\.[0-9]{1,3})?(MB|GB)/s$",
    _BYTES_PER_S,
    _sum_of(_BYTES_PER_S),
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
PullSecretName = Annotated[
    str,
    StringConstraints(pattern=rf"^{_SUBDOMAIN}$", min_length=1, max_length=253),
    Allowed("the name of a Secret in the same namespace, as text; a mapping with name goes into pullSecrets"),
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
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
OtlpUrl = Annotated[
    str,
    StringConstraints(pattern=rf"^https?://[A-Za-z0-9][A-Za-z0-9.-]*(:{_PORT})?(/[A-Za-z0-9._~/-]*)?$", max_length=512),
    Allowed("http(s)://HOST[:PORT][/PATH] without credentials"),
]
QualifiedName = Annotated[
    str,
    StringConstraints(pattern=KEY_PATTERN, max_length=253),
    Allowed("a Kubernetes key such as example.com/tier"),
]
LabelValue = Annotated[
    str,
    StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63),
    Allowed("a label value of at most 63 letters, digits and '-_.'"),
]
AnnotationValue = Annotated[str, StringConstraints(max_length=1024), Allowed("text of at most 1024 characters")]
CpuQuantity = Annotated[str, CPUS]
MemoryText = Annotated[str, BYTES]
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
Cidr = Annotated[
    str,
    StringConstraints(
        pattern=rf"^({_OCTET}([.]{_OCTET}){{3}}/(3[0-2]|[12]?[0-9])|[0-9a-fA-F:]*:[0-9a-fA-F:]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$",
        max_length=49,
    ),
    Allowed("a network such as 192.0.2.0/24 or 2001:db8::/32"),
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
