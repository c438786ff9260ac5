"""Key files: tenants by the digests of their API keys, which are kept as SHA-256 only.

A key file is text or JSON. Text has one key per line, `KEY` or `NAME: KEY`; lines that begin with # are comments.
JSON is {"tenants": [{"name": "a", "key_sha256": ["…"], "weight": 2, "max_running": 64, "max_queued": 256}]}, and with
"role": "operator" the keys show what all tenants do.
A folder, such as a mounted Secret, contains such files: a key without a name belongs to the tenant named like its file.
No message repeats a line of a key file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from baton_gateway.requests.tenant import DEFAULT_TENANT, FileTenant, Tenant


class TenantFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key file in JSON."""

    tenants: Annotated[tuple[FileTenant, ...], msgspec.Meta(min_length=1, max_length=10_000)]


MAX_FILE_BYTES = 4 << 20
KEY_WORDS = "8 to 512 visible ASCII characters"
_KEY = re.compile(r"[!-~]{8,512}")
_LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):[ \t]+)?(?P<key>\S+)")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyFiles:
    """The tenants by key, from the last valid content of a key file, or of a folder of them."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError that names the file and field if the file is invalid."""
        self._path = path
        self._version = file_versions(path)
        self.by_digest = _read(path)

    def refresh(self) -> bool:
        """Read the files again if they changed; returns whether they did.

        Raises ValueError as above, once for each content; the former keys stay valid.
        """
        if (version := file_versions(self._path)) == self._version:
            return False
        self._version = version
        self.by_digest = _read(self._path)
        return True


def first_key(path: Path) -> str | None:
    """Return a key that a client on this machine can use; None: only digests are known. Raises ValueError."""
    for file in _files(path):
        text = _text(file)
        if not text.startswith("{"):
            return next(key for _, key in _lines(file, text, _default_name(path, file)))
    return None


def file_versions(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return values that change with the file, or any file of the folder; empty if they cannot be read."""
    try:
        files = [(file.name, file.stat()) for file in _files(path)]
    except (OSError, ValueError):
        return ()
    return tuple((name, status.st_mtime_ns, status.st_size, status.st_ino) for name, status in files)


def _files(path: Path) -> tuple[Path, ...]:
    """Return the key files. Hidden ones are ignored: a mounted Secret has such links. Raises OSError, ValueError."""
    if not path.is_dir():
        return (path,)
    files = tuple(sorted(file for file in path.iterdir() if not file.name.startswith(".")))
    for file in files:
        if _FILE.fullmatch(file.name) is None or not file.is_file():
            raise ValueError(f"{path}: {file.name!r} is not allowed: must be a file named with letters, digits, '._-'")
    if not files:
        raise ValueError(f"{path}: has no files, so no client could send requests")
    return files


def _read(path: Path) -> dict[str, Tenant]:
    by_digest: dict[str, Tenant] = {}
    try:
        for file in _files(path):
            text = _text(file)
            tenants = (
                _parse_json(file, text) if text.startswith("{") else _parse_lines(file, text, _default_name(path, file))
            )
            for place, tenant in enumerate(tenants):
                owner = tenant.tenant()
                for digest in tenant.key_sha256:
                    if digest in by_digest:
                        raise ValueError(f"{file}: tenants[{place}] {tenant.name}: its key is given already")
                    by_digest[digest] = owner
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    return by_digest


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{file}: must be at most {MAX_FILE_BYTES} bytes")
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not text") from None


def _parse_json(file: Path, text: str) -> tuple[FileTenant, ...]:
    try:
        return msgspec.json.decode(text, type=TenantFile).tenants
    except msgspec.DecodeError as error:
        raise ValueError(f"{file}: {error}") from error


def _parse_lines(file: Path, text: str, default_name: str) -> tuple[FileTenant, ...]:
    keys: dict[str, list[str]] = {}
    for name, key in _lines(file, text, default_name):
        keys.setdefault(name, []).append(hashlib.sha256(key.encode()).hexdigest())
    return tuple(FileTenant(name, tuple(digests)) for name, digests in keys.items())


def _lines(file: Path, text: str, default_name: str) -> Iterator[tuple[str, str]]:
    """Yield name and key of every line.

    Raises ValueError if there is no line, or a wrong one: it names the line, never its content.
    """
    is_empty = True
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not is_key(match["key"]):
            raise ValueError(f"{file}: line {number} is not allowed: must be KEY or NAME: KEY, the key {KEY_WORDS}")
        is_empty = False
        yield match["name"] or default_name, match["key"]
    if is_empty:
        raise ValueError(f"{file}: has no key, so no client could send requests")


def is_key(text: str) -> bool:
    """Return True if a text can be an API key. `KEY_WORDS` says what a key must be."""
    return _KEY.fullmatch(text) is not None


def _default_name(path: Path, file: Path) -> str:
    """Return the tenant of the keys without a name in a file."""
    return DEFAULT_TENANT.name if file == path else file.name
