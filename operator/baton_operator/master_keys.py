"""The operator's master keys: files in a folder that others rotate, read again while the process runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from baton_control.errors import OperatorError
from baton_wire.keys import MIN_MASTER_BYTES

_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?")
MAX_KEYS = 16
"""As many as the processes take that get the keys which follow from them."""


class MasterKeysError(OperatorError):
    """The folder does not hold usable keys; never says what is in them."""


class MasterKeys:
    """Key ids and keys. A folder that cannot be read for a moment leaves the last good set standing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys = self._read()

    def __call__(self) -> Mapping[str, bytes]:
        return self._keys

    def reload(self) -> bool:
        """Read again; whether the set is another one now. Raises MasterKeysError, with the old set still standing."""
        keys = self._read()
        changed, self._keys = keys != self._keys, keys
        return changed

    def _read(self) -> dict[str, bytes]:
        try:
            files = sorted(path for path in self._folder.iterdir() if path.is_file() and not path.name.startswith("."))
            keys = {path.name: path.read_bytes() for path in files}
        except OSError as error:
            raise MasterKeysError(f"master keys: {self._folder}: {error.strerror}") from error
        if not keys:
            raise MasterKeysError(f"master keys: {self._folder} has no file")
        if len(keys) > MAX_KEYS:
            raise MasterKeysError(f"master keys: {self._folder} has {len(keys)} files: must be at most {MAX_KEYS}")
        for name, key in keys.items():
            if not _ID.fullmatch(name):
                raise MasterKeysError(
                    f"master keys: {name!r} is not allowed: must be up to 32 of a-z, 0-9, '.' and '-'"
                )
            if len(key) < MIN_MASTER_BYTES:
                raise MasterKeysError(
                    f"master keys: {name} has {len(key)} bytes: must have at least {MIN_MASTER_BYTES}"
                )
        return keys
