"""What a process says about itself once it is ready: the content of its announce file, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from baton_local.errors import LocalError

MAX_FILE_BYTES = 64 << 10
Positive = Annotated[int, msgspec.Meta(gt=0)]


class Announcement(msgspec.Struct, frozen=True):
    """Where a process listens."""

    pid: Positive
    host: str
    port: Positive
    pair_port: Positive | None = None
    """Where a decode worker takes prefill workers' links; None elsewhere."""
    admin_port: Positive | None = None
    """Where the gateway answers about all its processes; None for a worker."""


def read_announcement(path: Path) -> Announcement | None:
    """The announcement in a file, None while there is none. Raises LocalError when it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes()[:MAX_FILE_BYTES], type=Announcement)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise LocalError(f"{path.name} is no announcement: {error}") from error
