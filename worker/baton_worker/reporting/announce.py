"""The announce file: how a local worker tells `baton up` which ports it got.

Written atomically, once, when it is ready.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Announcement:
    pid: int
    role: str
    epoch: str
    host: str
    port: int
    pair_port: int | None


def announce(path: Path, announcement: Announcement) -> None:
    """Write the file so that a reader sees all of it or nothing. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(announcement)), encoding="utf-8")
    temporary.replace(path)
