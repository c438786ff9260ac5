"""The announce file: a process that `baton up` started reports its ports in it, once it is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from baton_wire.errors import BadMessageError
from baton_wire.whole_file import write_whole

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
    role: str | None = None
    epoch: str | None = None
    """A worker's, in hexadecimal."""


def announce(path: Path, announcement: Announcement) -> None:
    """Write the file so that a reader sees all of it or nothing. Raises OSError."""
    write_whole(path, msgspec.json.encode(announcement))


def read_announcement(path: Path) -> Announcement | None:
    """The announcement in a file, None while there is none. Raises BadMessageError when it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes()[:MAX_FILE_BYTES], type=Announcement)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise BadMessageError(f"{path.name} is no announcement: {error}") from error
