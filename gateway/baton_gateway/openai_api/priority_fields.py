"""The fields with which clients ask for a priority class: `service_tier` as OpenAI's, `priority` as vLLM's.

vLLM's number orders requests, and smaller ones go first: below 0 is `Interactive` here, above 0 `Batch`. `priority`
wins over `service_tier` where a request has both.
"""

from __future__ import annotations

from typing import Any, Final

from baton_gateway.errors import invalid
from baton_gateway.openai_api.openai_fields import Fields, check_integer, wrong_type
from baton_wire.tenant_table import PriorityClass

MAX_PRIORITY: Final = (1 << 63) - 1
TIERS: Final[dict[str, PriorityClass | None]] = {
    "auto": None,
    "default": PriorityClass.STANDARD,
    "flex": PriorityClass.BATCH,
    "priority": PriorityClass.INTERACTIVE,
    "scale": None,
}
"""The values of `service_tier`; None: the usual class of the tenant."""
_USED_TIERS: Final = {
    PriorityClass.BATCH: "flex",
    PriorityClass.STANDARD: "default",
    PriorityClass.INTERACTIVE: "priority",
}
_CLASSES: Final = {priority.lower(): priority for priority in PriorityClass}


def used_tier(priority: PriorityClass) -> str:
    """The `service_tier` of an answer."""
    return _USED_TIERS[priority]


def read_priority(fields: Fields) -> PriorityClass | None:
    """Read the class that a request asks for; None: it asks for none. Raises RefusedError."""
    tier, priority = fields.take("service_tier"), fields.take("priority")
    of_tier = None if tier is None else _read_tier(tier)
    return of_tier if priority is None else _read_class(priority)


def _read_tier(value: Any) -> PriorityClass | None:
    if not isinstance(value, str):
        raise wrong_type("service_tier", "a string")
    if value not in TIERS:
        raise invalid("service_tier", f"'service_tier' must be one of {', '.join(TIERS)}.")
    return TIERS[value]


def _read_class(value: Any) -> PriorityClass:
    if isinstance(value, str):
        if (priority := _CLASSES.get(value.lower())) is None:
            allowed = f"an integer, or one of {', '.join(_CLASSES)}"
            raise invalid("priority", f"'priority' must be {allowed}.")
        return priority
    number = check_integer(value, "priority", -MAX_PRIORITY - 1, MAX_PRIORITY)
    if number == 0:
        return PriorityClass.STANDARD
    return PriorityClass.INTERACTIVE if number < 0 else PriorityClass.BATCH
