"""The shared keys of the internal links: a directory with one file per key, re-read when it changes.

The file's name is the key's id, its content at least 32 bytes, raw or as hexadecimal digits. Keys rotate by adding a
file everywhere, then removing the old one everywhere; no process restarts. Errors name the file, never its content.

The keys of a deployment follow from master keys, so that nothing has to be stored or read (`derived_key`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_wire.errors import AuthenticationError
from baton_wire.whole_file import write_all

MIN_KEY_BYTES = 32
MIN_MASTER_BYTES = 32
MAX_KEY_FILE_BYTES = 4_096
MAX_KEYS = 16
MAX_KEY_ID_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,31}")
_HEX = re.compile(rb"[0-9a-fA-F]+")
_PURPOSE = b"baton link key\0"
_OPERATOR_PURPOSE = b"baton operator token"
_FORBIDDEN_MODE = stat.S_IWGRP | stat.S_IRWXO


@dataclass(frozen=True, slots=True, repr=False)
class KeySet:
    """Keys by id. Never printed."""

    by_id: Mapping[str, bytes]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(sorted(self.by_id))

    def choose(self, offered: tuple[str, ...]) -> str:
        """The last id in order that both sides hold. Raises AuthenticationError when there is none."""
        shared = sorted(set(offered) & set(self.by_id))
        if not shared:
            raise AuthenticationError(f"no shared key: the peer offers {list(offered)}, here are {list(self.ids)}")
        return shared[-1]

    def __repr__(self) -> str:
        return f"KeySet(ids={list(self.ids)})"


class KeyDirectory:
    """The key set in a directory, as of now."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: object = None
        self._keys = KeySet({})

    def current(self) -> KeySet:
        """The keys. Reads the directory anew when anything in it changed since the last call.

        Raises AuthenticationError naming the file when the directory cannot be read, holds no key, or a key is too
        short, too long, badly named, or readable by others.
        """
        seen = self._look()
        if seen != self._seen:
            self._keys = read_keys(self._path)
            self._seen = seen
        return self._keys

    def _look(self) -> object:
        try:
            entries = [(entry.name, entry.stat()) for entry in os.scandir(self._path)]
        except OSError as error:
            raise AuthenticationError(f"key directory {self._path}: {error.strerror}") from error
        return sorted((name, s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino, s.st_mode) for name, s in entries)


def read_keys(directory: Path) -> KeySet:
    """All keys of a directory; names that begin with a dot are skipped (mounted Secrets keep their own there)."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if not entry.name.startswith("."))
        keys = {name: _read_key(directory / name) for name in names}
    except OSError as error:
        raise AuthenticationError(f"key directory {directory}: {error}") from error
    if not keys:
        raise AuthenticationError(f"key directory {directory}: holds no key")
    if len(keys) > MAX_KEYS:
        raise AuthenticationError(f"key directory {directory}: {len(keys)} keys, at most {MAX_KEYS} are allowed")
    return KeySet(keys)


def _read_key(path: Path) -> bytes:
    if not _KEY_ID.fullmatch(path.name):
        raise AuthenticationError(f"key {path}: a key id is 1 to {MAX_KEY_ID_BYTES} letters, digits, '.', '_' or '-'")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise AuthenticationError(f"key {path}: is not a file")
    if status.st_mode & _FORBIDDEN_MODE:
        mode = stat.filemode(status.st_mode)
        raise AuthenticationError(
            f"key {path}: mode {mode} lets others read it or the group write it; use 0600 or 0440"
        )
    if status.st_size > MAX_KEY_FILE_BYTES:
        raise AuthenticationError(f"key {path}: {status.st_size} bytes, at most {MAX_KEY_FILE_BYTES} are allowed")
    content = path.read_bytes()
    digits = content.strip()
    key = bytes.fromhex(digits.decode()) if _HEX.fullmatch(digits) and len(digits) % 2 == 0 else content
    if len(key) < MIN_KEY_BYTES:
        raise AuthenticationError(f"key {path}: {len(key)} bytes, at least {MIN_KEY_BYTES} are needed")
    return key


def write_new_key(directory: str | Path, key_id: str) -> Path:
    """Add a fresh random key for the owner's eyes only; it appears whole or not at all. Raises FileExistsError."""
    target = Path(directory) / key_id
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError(f"key_id: {key_id!r} is not 1 to {MAX_KEY_ID_BYTES} letters, digits, '.', '_' or '-'")
    draft = target.with_name(f".{key_id}.{os.getpid()}")
    try:
        write_all(draft, secrets.token_hex(MIN_KEY_BYTES).encode(), 0o600)
        os.link(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def derived_key(master: bytes, uid: str) -> str:
    """The link key of the deployment with that uid, as 64 hex digits. Raises ValueError for a short master key.

    HMAC-SHA256(master, "baton link key" ‖ uid): the same again after a restart of the operator, and a different one for
    a deployment of the same name made later. It is of no use to learn another deployment's key.
    """
    if len(master) < MIN_MASTER_BYTES:
        raise ValueError(f"a master key has {len(master)} bytes: must be at least {MIN_MASTER_BYTES}")
    return hmac.new(master, _PURPOSE + uid.encode(), hashlib.sha256).hexdigest()


def operator_token(link_key: bytes) -> str:
    """The bearer token of an installation's operator, who has a link key and may see the records of all tenants.

    HMAC-SHA256(link key, "baton operator token"), as 64 hex digits. The link key does not follow from it.
    """
    return hmac.new(link_key, _OPERATOR_PURPOSE, hashlib.sha256).hexdigest()


def is_operator_token(token: str, keys: KeySet) -> bool:
    """Return True if a token follows from one of the link keys."""
    given = token.encode(errors="replace")
    matches = [hmac.compare_digest(operator_token(key).encode(), given) for key in keys.by_id.values()]
    return any(matches)
