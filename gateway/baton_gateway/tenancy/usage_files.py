"""Reads the saved counts of tokens of the month that are mounted next to the table of tenants."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from baton_wire.tenant_table import MAX_SHARD_BYTES, NUM_SHARDS
from baton_wire.tenant_usage import UsageShard, decode_usage, usage_file

_log = logging.getLogger("baton.gateway.tenants")
FileVersion = tuple[int, int, int]


class UsageFiles:
    """The files of saved counts in the folder of the table; None: there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._paths = () if folder is None else tuple(folder / usage_file(place) for place in range(NUM_SHARDS))
        self._versions: dict[str, FileVersion] = {}

    def changed(self) -> Iterator[UsageShard]:
        """Yield the counts of the files that changed since the last call. A broken one is logged and says nothing."""
        for path in self._paths:
            try:
                status = path.stat()
                version = status.st_mtime_ns, status.st_size, status.st_ino
                if self._versions.get(path.name) == version:
                    continue
                with path.open("rb") as opened:
                    content = opened.read(MAX_SHARD_BYTES + 1)
            except OSError:
                continue
            self._versions[path.name] = version
            try:
                yield decode_usage(content)
            except ValueError as error:
                _log.error("what tenants used this month stays as it was: %s: %s", path, error)
