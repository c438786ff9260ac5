"""Typed reading of a JSON object. Every wrong value becomes a ModelConfigError that names the field, the value and what
is allowed.

Knows JSON only; which fields a model has is its family's business.
"""

from __future__ import annotations

import json
from typing import Final

from baton_wire.models.errors import ModelConfigError

JsonObject = dict[str, object]

MAX_SIZE: Final = 1 << 20
"""Bound on any dimension of a model, unless its field says otherwise: the widest published models have some 20,000."""
MAX_POSITIONS: Final = 1 << 27
"""Most positions that a config may name; a worker serves as many as the wire carries."""
LEAST_NUMBER, MOST_NUMBER = 1e-6, 1e6
"""Bounds on factors, caps and the like: numbers outside give nothing usable in 16 bits."""
MOST_THETA: Final = 1e12


class ConfigFields:
    """A JSON object read field by field; `prefix` is put before names in errors (`rope_scaling.factor`).

    A default is used when the field is absent or null; without a default such a field is an error.
    """

    def __init__(self, values: JsonObject, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def has(self, name: str) -> bool:
        """True if the field is present and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        return self._values.get(name)

    def names(self) -> list[str]:
        return list(self._values)

    def error(self, name: str, allowed: str) -> ModelConfigError:
        """The error for the field's present value."""
        value = self._values.get(name)
        if value is None:
            return ModelConfigError(f"{self._prefix}{name}: is missing; allowed: {allowed}")
        return ModelConfigError(f"{self._prefix}{name}: {_shown(value)} is not supported; allowed: {allowed}")

    def integer(self, name: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            value = default  # which another field may have made impossible
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.error(name, f"an integer from {minimum} to {maximum}")
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        minimum: float = LEAST_NUMBER,
        maximum: float = MOST_NUMBER,
    ) -> float:
        """A finite number in (minimum, maximum]."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not minimum < value <= maximum:
            raise self.error(name, f"a number above {minimum:g} and at most {maximum:g}")
        return float(value)

    def theta(self, name: str, default: float | None = None) -> float:
        """The base of a rotation."""
        return self.number(name, default, 1.0, MOST_THETA)

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def only(self, name: str, expected: object, allowed: str) -> None:
        """The field must be absent, null or equal to `expected`."""
        value = self._values.get(name)
        if value is not None and value != expected:
            raise self.error(name, allowed)

    def refuse_others(self, known: tuple[str, ...]) -> None:
        """Every field that is present and not null must be a known one."""
        for name in self._values:
            if name not in known and self.has(name):
                raise self.error(name, f"one of {', '.join(known)}")

    def section(self, name: str) -> ConfigFields:
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return ConfigFields(value, f"{self._prefix}{name}.")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 120 else f"{text[:117]}..."
