"""The comparison of a live object with what was applied. Pure, and quicker than applying again.

Only fields that Baton sets are compared. Defaults of the server and additions by others do not count.
"""

from __future__ import annotations

import re
from decimal import Decimal

from baton_operator.kube.object_fields import Manifest, mapping

APPLIED = "baton.dev/applied"
"""Annotation with the hash of what was applied. It shows every change of what is wanted, also a removed field."""
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?")
_POWERS = {"m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12)}
_POWERS |= {"P": Decimal(10**15), "": Decimal(1)}
_POWERS |= {f"{letter}i": Decimal(1 << (10 * place)) for place, letter in enumerate("KMGTP", 1)}


def has_drifted(wanted: Manifest, live: Manifest) -> bool:
    """True if any field of `wanted`, except for status and preconditions, is absent or different in `live`."""
    for name, value in wanted.items():
        if name == "metadata":
            ours, theirs = mapping(value), mapping(live.get("metadata"))
            settings = {key: setting for key, setting in ours.items() if key not in ("uid", "resourceVersion")}
            if not _holds(settings, theirs, ""):
                return True
        elif not _holds(value, live.get(name), name):
            return True
    return False


def _holds(wanted: object, live: object, name: str) -> bool:
    if isinstance(wanted, dict):
        live_fields = mapping(live)
        return all(_holds(value, live_fields.get(key), str(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        return _list_holds(wanted, live, name)
    if wanted == live:
        return True
    if live is None:
        return wanted in ("", False, 0, None)  # what the server leaves out of its answers
    return isinstance(wanted, str) and isinstance(live, str) and _same_quantity(wanted, live)


def _list_holds(wanted: list[object], live: object, name: str) -> bool:
    if live is None:
        return not wanted
    if not isinstance(live, list):
        return False
    key = "uid" if name == "ownerReferences" else "name"
    ours, theirs = _by(wanted, key), _by(live, key)
    if ours is not None and theirs is not None:
        return all(item in theirs and _holds(value, theirs[item], "") for item, value in ours.items())
    return len(wanted) == len(live) and all(_holds(one, other, "") for one, other in zip(wanted, live, strict=True))


def _by(items: list[object], key: str) -> dict[str, object] | None:
    items_by_key: dict[str, object] = {str(item[key]): item for item in items if isinstance(item, dict) and key in item}
    return items_by_key if items and len(items_by_key) == len(items) else None


def _same_quantity(one: str, other: str) -> bool:
    first, second = _amount(one), _amount(other)
    return first is not None and first == second


def _amount(text: str) -> Decimal | None:
    match = _QUANTITY.fullmatch(text)
    return None if match is None else Decimal(match.group(1)) * _POWERS[match.group(2) or ""]
