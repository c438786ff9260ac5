"""What a process says about itself once it is ready: the content of its announce file, checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from baton_local.errors import LocalError

MAX_FILE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where a process listens."""

    pid: int
    host: str
    port: int
    pair_port: int | None
    """Where a decode worker takes prefill workers' links; None elsewhere."""
    admin_port: int | None
    """Where the gateway answers about all its processes; None for a worker."""


def read_announcement(path: Path) -> Announcement | None:
    """The announcement in a file, None while there is none. Raises LocalError when it is not one."""
    try:
        data = path.read_bytes()[:MAX_FILE_BYTES]
    except FileNotFoundError:
        return None
    try:
        return _parse(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise LocalError(f"{path.name} is no announcement: {error!r}") from error


def _parse(raw: dict[str, object]) -> Announcement:
    pair, admin = raw.get("pair_port"), raw.get("admin_port")
    return Announcement(
        pid=_integer(raw["pid"]),
        host=str(raw["host"]),
        port=_integer(raw["port"]),
        pair_port=None if pair is None else _integer(pair),
        admin_port=None if admin is None else _integer(admin),
    )


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise TypeError(f"{value!r} is not a positive integer")
    return value
