"""Who asks: API keys to tenants. Keys are kept as SHA-256 digests only; without a key file everyone is the default
tenant.

A key file is text or JSON. Text has a key a line, `KEY` or `NAME: KEY`; lines that begin with # are comments.
JSON is {"tenants": [{"name": "a", "key_sha256": ["…"], "weight": 2, "max_running": 64, "max_queued": 256}]}.
A folder, such as a mounted Secret, holds such files: a key without a name belongs to the tenant named like its file.
No message repeats a line of a key file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from baton_gateway.errors import INVALID, Problem, RefusedError
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant


class TenantFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: Annotated[tuple[Tenant, ...], msgspec.Meta(min_length=1, max_length=10_000)]


MAX_FILE_BYTES = 4 << 20
KEY_WORDS = "8 to 512 visible ASCII characters"
_KEY = re.compile(r"[!-~]{8,512}")
_LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):[ \t]+)?(?P<key>\S+)")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNAUTHORIZED = Problem(401, INVALID, "The API key is missing or unknown.", None, "invalid_api_key")


class Tenants:
    """Keys to tenants, as of the file's last good content."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises ValueError naming the file and field when the file does not fit."""
        self._path = path
        self._seen = () if path is None else _look(path)
        self._by_digest: dict[str, Tenant] | None = None if path is None else _read(path)

    def refresh(self) -> None:
        """Read the file again if it changed. Raises ValueError as above, once for each content; the old one stays
        valid.
        """
        if self._path is None or (seen := _look(self._path)) == self._seen:
            return
        self._seen = seen
        self._by_digest = _read(self._path)

    def of(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header. Raises RefusedError (401)."""
        if self._by_digest is None:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode(errors="surrogateescape")).hexdigest()
        tenant = self._by_digest.get(digest) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise RefusedError(_UNAUTHORIZED)
        return tenant


def first_key(path: Path) -> str | None:
    """A key with which a client on this machine may ask; None where only digests are known. Raises ValueError."""
    for file in _files(path):
        text = _text(file)
        if not text.startswith("{"):
            return next(key for _, key in _lines(file, text, _unnamed(path, file)))
    return None


def _look(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What changes with the file, or with any file of the folder; empty when it cannot be seen."""
    try:
        found = [(file.name, file.stat()) for file in _files(path)]
    except (OSError, ValueError):
        return ()
    return tuple((name, status.st_mtime_ns, status.st_size, status.st_ino) for name, status in found)


def _files(path: Path) -> tuple[Path, ...]:
    """The key files; what is hidden, as a mounted Secret's own links are, is none. Raises OSError, ValueError."""
    if not path.is_dir():
        return (path,)
    files = tuple(sorted(each for each in path.iterdir() if not each.name.startswith(".")))
    for file in files:
        if _FILE.fullmatch(file.name) is None or not file.is_file():
            raise ValueError(f"{path}: {file.name!r} is not allowed: must be a file named with letters, digits, '._-'")
    if not files:
        raise ValueError(f"{path}: has no files: nobody could ask anything")
    return files


def _read(path: Path) -> dict[str, Tenant]:
    by_digest: dict[str, Tenant] = {}
    try:
        for file in _files(path):
            text = _text(file)
            tenants = _of_json(file, text) if text.startswith("{") else _of_lines(file, text, _unnamed(path, file))
            for place, tenant in enumerate(tenants):
                for digest in tenant.key_sha256:
                    if digest in by_digest:
                        raise ValueError(f"{file}: tenants[{place}] {tenant.name}: a key that is given already")
                    by_digest[digest] = tenant
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


def _of_json(file: Path, text: str) -> tuple[Tenant, ...]:
    try:
        return msgspec.json.decode(text, type=TenantFile).tenants
    except msgspec.DecodeError as error:
        raise ValueError(f"{file}: {error}") from error


def _of_lines(file: Path, text: str, unnamed: str) -> tuple[Tenant, ...]:
    keys: dict[str, list[str]] = {}
    for name, key in _lines(file, text, unnamed):
        keys.setdefault(name, []).append(hashlib.sha256(key.encode()).hexdigest())
    return tuple(Tenant(name, tuple(digests)) for name, digests in keys.items())


def _lines(file: Path, text: str, unnamed: str) -> Iterator[tuple[str, str]]:
    """(name, key) of every line; raises ValueError naming a line, never what it holds, or when there is none."""
    is_empty = True
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not is_key(match["key"]):
            raise ValueError(f"{file}: line {number} is not allowed: must be KEY or NAME: KEY, the key {KEY_WORDS}")
        is_empty = False
        yield match["name"] or unnamed, match["key"]
    if is_empty:
        raise ValueError(f"{file}: has no key: nobody could ask anything")


def is_key(text: str) -> bool:
    """Whether a text can be an API key; what else it must be is `KEY_WORDS`."""
    return _KEY.fullmatch(text) is not None


def _unnamed(path: Path, file: Path) -> str:
    """Whose a key without a name is."""
    return DEFAULT_TENANT.name if file == path else file.name
