"""Types of the command line's arguments: each parses a text, or refuses it in one line.

Parsers are imported only when there is a text to parse: `baton --help` needs none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from baton_wire.suggestions import suggestion

if TYPE_CHECKING:
    from baton_control.worker_specs import Device

DTYPES = ("auto", "bfloat16", "float16", "float32")


def integer(low: int, high: int) -> type[int]:
    """An argument's type: an integer in decimal digits, within bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:12]) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be an integer from {low} to {high}")
        return int(text)

    return parse  # type: ignore[return-value]  # argparse takes any callable, its stubs any type


def utc_time(text: str) -> str:
    """An argument's type: a time in UTC."""
    from baton_control.spec.tenant_fields import seconds_of

    try:
        seconds_of(text)
    except ValueError:
        message = f"{text!r} is not allowed: must be a time in UTC such as 2027-01-31T00:00:00Z"
        raise argparse.ArgumentTypeError(message) from None
    return text


def device(text: str) -> Device:
    """An argument's type: `cpu` or `cuda`."""
    from baton_control.worker_specs import Device

    if text not in set(Device):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be one of {', '.join(Device)}")
    return Device(text)


def size(text: str) -> int:
    """An argument's type: bytes, as `100Gi`."""
    from pydantic_core import PydanticCustomError

    from baton_control.spec.quantities import MEMORY

    try:
        return MEMORY.parse(text)
    except PydanticCustomError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be a size such as 512Mi or 100Gi") from None


def volume(text: str) -> tuple[str, Path]:
    """An argument's type: NAME=PATH."""
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be NAME=PATH")
    return name, Path(path)


def seconds(text: str) -> float:
    """An argument's type: a time, as `500ms` or `30m`."""
    from baton_control.spec.quantities import DURATION

    try:
        return DURATION.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: must be a time such as 500ms, 25ms or 30m"
        ) from error


def time_or(unit: str) -> Callable[[str], float]:
    """An argument's type: a time over 0, as `25ms` or `10m`. A bare number is in `unit` (s, ms), as it once was."""

    def parse(text: str) -> float:
        is_bare = text.replace(".", "", 1).isdigit() and text.isascii()
        return some_seconds(f"{text}{unit}" if is_bare else text)

    return parse


def dtype(text: str) -> str:
    """An argument's type: the type of weights and arithmetic."""
    if text not in DTYPES:
        meant = suggestion(text, DTYPES)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be one of {', '.join(DTYPES)}{meant}")
    return text


def degree(text: str) -> int:
    """An argument's type: a number of ranks."""
    from baton_control.spec.tensor_parallel import DEGREES, ONE_OF_DEGREES

    if text not in map(str, DEGREES):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be {ONE_OF_DEGREES}")
    return int(text)


def workers(text: str) -> tuple[int, int]:
    """An argument's type: a number of workers, or the fewest and the most of them, as `2` or `1-4`."""
    low, separator, high = text.partition("-")
    high = high if separator else low
    if not (low.isdecimal() and high.isdecimal() and text.isascii() and 1 <= int(low[:6]) <= int(high[:6]) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be N or MIN-MAX, from 1 to 1024")
    return int(low), int(high)


def some_seconds(text: str) -> float:
    """An argument's type: a time over 0."""
    value = seconds(text)
    if value <= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be a time over 0")
    return value


def moment(text: str) -> float:
    """An argument's type: a time in the past, as Unix seconds. It is given by how long ago it was, or as a day."""
    import re
    import time
    from datetime import UTC, datetime, timedelta

    now = time.time()
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("today", "yesterday"):
        return (today - timedelta(days=text == "yesterday")).timestamp()
    try:
        if re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", text):
            return datetime.fromisoformat(f"{text}-01"[:10]).replace(tzinfo=UTC).timestamp()
        days = re.fullmatch(r"([0-9]{1,5})(d|w)", text)
        past_s = seconds(text) if days is None else int(days[1]) * (86_400.0 if days[2] == "d" else 7 * 86_400.0)
    except (ValueError, argparse.ArgumentTypeError):
        past_s = 0.0
    if past_s <= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be {MOMENTS}")
    return now - past_s


MOMENTS = "a time ago such as 30m, 24h or 7d, a day or a month in UTC such as 2026-11-30 or 2026-11, today or yesterday"


def look_back(text: str) -> float:
    """An argument's type: as `moment`, but as seconds before now."""
    import time

    return max(0.0, time.time() - moment(text))


def manifest_file(text: str) -> Path:
    """An argument's type: the path of a manifest, which is no folder."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder: a model's folder is MODEL, without -f")
    return path


def positive(text: str) -> float:
    """An argument's type: a number over 0, at most 100,000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 100_000.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be a number over 0, at most 100000")
    return value
