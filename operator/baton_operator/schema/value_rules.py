"""CEL rules of one value, in place of a pattern: the server refuses a value with the sentence of the reader of files.

A pattern has no sentence, and it cannot express bounds of quantities or of the keys of a mapping.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_control.spec.count_or_percent import PERCENT
from baton_control.spec.quantities import KEY_PATTERN


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `x-kubernetes-validations`."""

    rule: str
    message: str
    field: str | None = None
    """Path below the place of the rule that the message is about."""

    def entry(self) -> dict[str, object]:
        """The entry as the schema holds it."""
        place = {} if self.field is None else {"fieldPath": self.field}
        return {"rule": self.rule, "message": self.message, **place}


def matches(pattern: str, message: str) -> Rule:
    """A text that matches a pattern, which the message replaces."""
    return Rule(_matches("self", pattern), message)


def count_or_percent_rule(most: int, message: str) -> Rule:
    """A count or a percentage."""
    return Rule(f"type(self) == int ? self >= 0 && self <= {most} : self.matches('{PERCENT}')", message)


def size_rule(pattern: str, least: str | None, most: str, message: str) -> Rule:
    """A quantity of Kubernetes within bounds: an integer or text. `least` None: all above zero, since fractions of the
    smallest unit are rounded up."""
    value = "quantity(string(self))"
    floor = f"{value}.isGreaterThan(quantity('0'))" if least is None else f"{value}.compareTo(quantity('{least}')) >= 0"
    bounds = f"{floor} && {value}.compareTo(quantity('{most}')) <= 0"
    return Rule(f"string(self).matches('{_quoted(pattern)}') && {bounds}", message)


def quantity_rule(unit: str, pattern: str, least: str | None, most: str | None, message: str) -> Rule:
    """A duration or a rate within bounds, which are written as a manifest writes them."""
    convert = {
        "duration": "duration({})",
        "rate": "(double({0}.substring(0, {0}.size() - 4)) * ({0}.endsWith('GB/s') ? 1000.0 : 1.0))",
    }[unit]
    value = convert.format("self")
    bounds = [
        f"{value} {operator} {convert.format(repr(bound))}"
        for bound, operator in ((least, ">="), (most, "<="))
        if bound is not None
    ]
    return Rule(" && ".join((f"self.matches('{_quoted(pattern)}')", *bounds)), message)


def _matches(value: str, pattern: str) -> str:
    """The expression that a text matches a pattern. The long one of Kubernetes' keys is known to servers by a name."""
    if pattern == KEY_PATTERN:
        return f"!format.qualifiedName().validate({value}).hasValue()"
    return f"{value}.matches('{_quoted(pattern)}')"


def _quoted(pattern: str) -> str:
    return pattern.replace("\\", "\\\\").replace("'", "\\'")


def keys_match(pattern: str, longest: int, allowed: str) -> Rule:
    """The keys of a mapping: a structural schema has no other way to bound them."""
    rule = f"self.all(k, k.size() <= {longest} && {_matches('k', pattern)})"
    return Rule(rule, f"keys must each be {allowed}")
