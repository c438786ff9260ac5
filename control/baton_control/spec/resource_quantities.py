"""Kubernetes' resource quantities: CPUs and bytes, in any of their spellings, kept as text in one normal form.

A spelling never reaches a template or a hash. The normal form of bytes has the fewest digits, so that `1024Mi` is `1Gi`
and `8000M` is `8G`; CPUs are a whole number or milli-CPUs. A fraction is rounded up, as Kubernetes does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

LONGEST_SPELLING: Final = 32
_BINARY: Final = tuple((f"{letter}i", 1 << 10 * place) for place, letter in enumerate("KMGTPE", 1))
_DECIMAL: Final = tuple((letter, 10 ** (3 * place)) for place, letter in enumerate("kMGTPE", 1))
_UNITS: Final = {unit: Decimal(factor) for unit, factor in (*_BINARY, *_DECIMAL)} | {"": Decimal(1)}
_NUMBER: Final = r"([0-9]{1,18}([.][0-9]{0,9})?|[.][0-9]{1,9})"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Annotates a type with what it allows, in words that fit after "must be"."""

    text: str


@dataclass(frozen=True, slots=True)
class AllowedValues(Allowed):
    """Annotates a type with every value that it allows; its bounds are not named besides."""


@dataclass(frozen=True, slots=True)
class ResourceQuantity(Allowed):
    """Annotates text that is a quantity of Kubernetes; a manifest may also write a plain integer."""

    pattern: str
    """Regular expression of every spelling, for readers other than Python too."""
    count: Callable[[str], int]
    """The number of the smallest units that a matching text means."""
    show: Callable[[int], str]
    """The normal form of a number of the smallest units."""
    most: str
    """The greatest value, as a manifest writes it; the least is one of the smallest units."""

    def normal(self, value: object) -> str:
        """The normal form of a value. Raises PydanticCustomError for what is not a quantity within the bounds.

        >>> CPUS.normal("0.5"), CPUS.normal(4), BYTES.normal("1.5Gi"), BYTES.normal("8000M"), BYTES.normal(1024)
        ('500m', '4', '1536Mi', '8G', '1Ki')
        """
        count = self.count(written(value, self.pattern, takes_integers=True))
        if not 1 <= count <= self.count(self.most):
            raise PydanticCustomError("quantity", "not within the bounds")
        return self.show(count)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.normal, handler(source))


def written(value: object, pattern: str, *, takes_integers: bool) -> str:
    """The text of a quantity as a manifest writes it. Raises PydanticCustomError for another value."""
    is_integer = takes_integers and isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if is_integer else value
    if not isinstance(text, str) or len(text) > LONGEST_SPELLING or re.fullmatch(pattern[1:-1], text) is None:
        raise PydanticCustomError("quantity", "not a quantity")
    return text


def _milli_cpus(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else math.ceil(Decimal(text) * 1000)


def _show_cpus(count: int) -> str:
    return f"{count}m" if count % 1000 else str(count // 1000)


def _bytes(text: str) -> int:
    digits = re.match(r"[0-9.]+", text)
    assert digits is not None, "the pattern begins with digits"
    unit, number = text[digits.end() :], Decimal(digits.group())
    exponent = re.fullmatch(r"[eE]([0-9]{1,2})", unit)
    return math.ceil(number * (_UNITS[unit] if exponent is None else Decimal(10) ** int(exponent.group(1))))


def _show_bytes(count: int) -> str:
    forms = [(count // factor, unit) for unit, factor in (*_BINARY, *_DECIMAL, ("", 1)) if count % factor == 0]
    number, unit = min(forms, key=lambda form: len(str(form[0])))
    return f"{number}{unit}"


CPUS: Final = ResourceQuantity(
    'CPUs such as 4, 500m or "0.5"',
    r"^([0-9]{1,9}(m|[.][0-9]{0,9})?|[.][0-9]{1,9})$",
    _milli_cpus,
    _show_cpus,
    "999999",
)
BYTES: Final = ResourceQuantity(
    "a size such as 512Mi, 1.5Gi or 8G",
    rf"^([0-9]{{1,19}}|{_NUMBER}([KMGTPE]i|[kMGTPE]|[eE][0-9]{{1,2}}))$",
    _bytes,
    _show_bytes,
    "4Ei",
)
