"""The tokens that tenants used in a calendar month (UTC), in shards next to those of the table of tenants.

The process that divides limits writes a shard now and then. A gateway starts from it, and that process does too. A
tenant that a shard leaves out has used nothing in its month. A shard that is absent says nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from baton_wire.messages.operator_link import MAX_SHARD_BYTES
from baton_wire.tenant_table import NUM_SHARDS, Name, shard_of

MAX_TOKENS = 10**15
"""Most tokens of one tenant in a month."""
STEP_BACK_S = 86_400.0
"""A clock that is set back by less does not bring a former month back."""
MAX_NAMES = 6_000
"""Most tenants in one shard, so that its bytes are bounded."""
MonthText = Annotated[str, Meta(pattern="^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])$")]
"""A calendar month in UTC, such as `2026-11`."""
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class UsageShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens of the tenants whose rows are in the shard of the same place."""

    place: Annotated[int, Meta(ge=0, lt=NUM_SHARDS)]
    month: MonthText
    used: Annotated[dict[Name, Tokens], Meta(max_length=MAX_NAMES)]


def usage_file(place: int) -> str:
    """The name of a shard's file. Without `.json`, because gateways read all such files of the folder as the table."""
    return f"usage-{place}"


def encode_usage(shard: UsageShard) -> bytes:
    """A shard as files hold it: JSON."""
    return msgspec.json.encode(shard, order="sorted")


def decode_usage(content: bytes) -> UsageShard:
    """Read a shard. Raises ValueError, which never repeats a value."""
    if len(content) > MAX_SHARD_BYTES:
        raise ValueError(f"has {len(content)} bytes, which is more than {MAX_SHARD_BYTES}")
    try:
        return msgspec.json.decode(content, type=UsageShard)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def split_usage(month: str, used: Mapping[str, float]) -> dict[int, UsageShard]:
    """The shards of what was used, by place: each one, also without a tenant. Of too many those that used most."""
    parts: dict[int, dict[str, int]] = {place: {} for place in range(NUM_SHARDS)}
    for name, tokens in used.items():
        if tokens >= 1:
            parts[shard_of(name)][name] = min(MAX_TOKENS, int(tokens))
    for place, part in parts.items():
        if len(part) > MAX_NAMES:
            parts[place] = dict(sorted(part.items(), key=lambda item: -item[1])[:MAX_NAMES])
    return {place: UsageShard(place, month, part) for place, part in parts.items()}


def month_at(now_s: float, former: str = "") -> str:
    """The month of a wall clock. `former`: the month so far, which stays where the clock was set back a little.

    >>> month_at(1_796_083_200.0), month_at(1_796_083_199.0), month_at(1_796_083_199.0, "2026-12")
    ('2026-12', '2026-11', '2026-12')
    """
    month = _month(now_s)
    return former if month < former == _month(now_s + STEP_BACK_S) else month


def month_ends_s(month: str) -> float:
    """The wall clock at which a month has ended.

    >>> month_ends_s("2026-11")
    1796083200.0
    """
    year, number = map(int, month.split("-"))
    following = datetime.datetime(year + number // 12, number % 12 + 1, 1, tzinfo=datetime.UTC)
    return following.timestamp()


def month_number(month: str) -> int:
    """A month as messages have it.

    >>> month_text(month_number("2026-12"))
    '2026-12'
    """
    year, number = map(int, month.split("-"))
    return 12 * year + number - 1


def month_text(number: int) -> str:
    """The text of a month that a message has."""
    return f"{number // 12:04}-{number % 12 + 1:02}"


def _month(now_s: float) -> str:
    return datetime.datetime.fromtimestamp(min(max(now_s, 0.0), 2e11), datetime.UTC).strftime("%Y-%m")
