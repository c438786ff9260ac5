"""The files of tenants: uploads, listing, reading and deletion, within the bounds of each tenant. Every call blocks."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from baton_gateway.batches.answer_journal import JOURNAL_FILES
from baton_gateway.batches.folder import FILE_ID, TenantFolder, hold_lock, new_file_id, try_lock, write_whole
from baton_gateway.batches.refusals import file_not_found, quota_exceeded
from baton_gateway.errors import RefusedError

STALE_UPLOAD_S: Final = 3_600.0
"""The age at which remains of a killed upload or file are removed."""


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a tenant."""

    id: str
    name: str
    size: int
    purpose: str
    created_at: int
    expires_at: int

    def shown(self) -> dict[str, Any]:
        """The file in OpenAI's form."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class FileBounds:
    """How much one tenant may store."""

    file_bytes: int = 512 << 20
    all_bytes: int = 10 << 30
    number: int = 1_000


class Upload:
    """Bytes that arrive, until they are a file or are thrown away.

    A client may leave while a thread writes. So threads take turns: a descriptor that is closed may be another file's.
    """

    def __init__(self, folder: TenantFolder, most_bytes: int) -> None:
        """Raises OSError."""
        self.id = new_file_id()
        self.size = 0
        self.most_bytes = most_bytes
        self._folder = folder
        self._turn = threading.Lock()
        self._is_closed = False
        self._path: Path | None = folder.uploads / self.id
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        hold_lock(self._descriptor)  # else a step of the clock would make it look as if its process were gone

    def write(self, content: bytes) -> None:
        """Append bytes. Raises OSError."""
        with self._opened():
            left = memoryview(content)
            while left:
                left = left[os.write(self._descriptor, left) :]
            self.size += len(content)

    def finish(self, name: str, purpose: str, kept_s: int, bounds: FileBounds) -> StoredFile:
        """Make it a file. Raises RefusedError above the tenant's bounds, OSError."""
        with self._opened():
            assert self._path is not None
            os.fsync(self._descriptor)
            now = int(time.time())
            file = StoredFile(self.id, name, self.size, purpose, now, now + kept_s)
            with self._folder.lock():
                _check_bounds(self._folder, bounds, self.size)
                self._path.rename(self._folder.files / f"{self.id}.data")
                self._path = self._folder.files / f"{self.id}.data"
                write_whole(self._folder.files / f"{self.id}.json", msgspec.json.encode(file))
            self._path = None
            return file

    def close(self) -> None:
        """Throw the bytes away unless they are a file. May be repeated."""
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._descriptor)
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Keep other threads from the descriptor. Raises OSError once it is closed."""
        with self._turn:
            if self._is_closed:
                raise OSError(errno.EBADF, "the upload is closed")
            yield


class FileStore:
    """The files of all tenants in one folder."""

    def __init__(self, root: Path, bounds: FileBounds) -> None:
        self._root = root
        self.bounds = bounds

    def folder(self, tenant: str) -> TenantFolder:
        return TenantFolder(self._root, tenant)

    def open_upload(self, tenant: str) -> Upload:
        """Begin an upload. Raises RefusedError if the tenant has no room for another file, OSError."""
        folder = self.folder(tenant)
        folder.make()
        room = _check_bounds(folder, self.bounds, 0)
        return Upload(folder, min(self.bounds.file_bytes, room))

    def list_all(self, tenant: str) -> list[StoredFile]:
        """Return the tenant's files, the newest first. Raises OSError."""
        files = [file for file in _read_files(self.folder(tenant)) if file.expires_at > time.time()]
        return sorted(files, key=lambda file: (-file.created_at, file.id))

    def find(self, tenant: str, file_id: str, param: str = "id") -> StoredFile:
        """Return a file of the tenant. `param`: the field that names it. Raises RefusedError (404), OSError."""
        file = None
        if FILE_ID.fullmatch(file_id):
            file = _read_file(self.folder(tenant).files / f"{file_id}.json")
        if file is None or file.expires_at <= time.time():
            raise RefusedError(file_not_found(file_id, param))
        return file

    def open_content(self, tenant: str, file_id: str) -> int:
        """Return a descriptor of the file's bytes. Raises RefusedError (404), OSError."""
        file = self.find(tenant, file_id)
        try:
            return os.open(self.folder(tenant).files / f"{file.id}.data", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise RefusedError(file_not_found(file_id)) from error

    def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file. Raises RefusedError (404), OSError."""
        file = self.find(tenant, file_id)
        remove_file(self.folder(tenant), file.id)

    def sweep(self, now_s: float, in_use: frozenset[str]) -> None:
        """Delete expired files of every tenant, and what killed processes left. `in_use`: ids of files that batches
        read or are about to publish. Raises OSError."""
        for path in (self._root / "tenants").iterdir():
            entries = _entries(path / "files")
            names = {entry.name for entry in entries}
            for entry in entries:
                file_id, _, kind = entry.name.partition(".")
                if file_id in in_use:
                    continue
                if not file_id or (kind == "data" and f"{file_id}.json" not in names):
                    _unlink_stale(entry, now_s)  # a draft, or bytes without what says that they are a file
                elif kind == "json":
                    file = _read_file(Path(entry.path))
                    if file is not None and file.expires_at <= now_s:
                        _unlink(path / "files", file.id)
            for entry in _entries(path / "uploads"):
                lock = try_lock(Path(entry.path))
                if lock is not None:
                    _unlink_stale(entry, now_s)
                    os.close(lock)


def used_bytes(folder: TenantFolder) -> int:
    """Return the bytes of a tenant's files and of its batches' answers so far. Raises OSError."""
    used = 0
    for entry in _entries(folder.files):
        if entry.name.endswith(".data"):
            used += _size_of(entry.path)
    for batch in _entries(folder.batches):
        used += sum(_size_of(f"{batch.path}/{name}") for name in JOURNAL_FILES)
    return used


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def publish(folder: TenantFolder, source: Path, file: StoredFile) -> None:
    """Make a finished file of answers one of the tenant's files. May be repeated after a kill. Raises OSError."""
    target = folder.files / f"{file.id}.data"
    with folder.lock():
        if source.exists():
            source.rename(target)
        if not (folder.files / f"{file.id}.json").exists():
            sized = msgspec.structs.replace(file, size=target.stat().st_size)
            write_whole(folder.files / f"{file.id}.json", msgspec.json.encode(sized))


def is_published(folder: TenantFolder, file_id: str) -> bool:
    """Return whether the bytes of a file of answers are in place."""
    return (folder.files / f"{file_id}.data").exists()


def remove_file(folder: TenantFolder, file_id: str) -> None:
    """Delete a file: first what says that it exists. Raises OSError."""
    with folder.lock():
        _unlink(folder.files, file_id)


def _unlink(files: Path, file_id: str) -> None:
    (files / f"{file_id}.json").unlink(missing_ok=True)
    (files / f"{file_id}.data").unlink(missing_ok=True)


def _unlink_stale(entry: os.DirEntry[str], now_s: float) -> None:
    """Delete what nothing has been written to for long. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if abs(now_s - entry.stat().st_mtime) > STALE_UPLOAD_S:
            os.unlink(entry.path)


def _check_bounds(folder: TenantFolder, bounds: FileBounds, size: int) -> int:
    """Return how many bytes more the tenant may store. Raises RefusedError."""
    number = sum(1 for _ in _read_files(folder))
    if number >= bounds.number:
        raise RefusedError(quota_exceeded(f"You have {number} files, and may have {bounds.number}."))
    used = used_bytes(folder)
    if used + max(size, 1) > bounds.all_bytes:
        message = f"Your files and your batches' answers have {used} bytes, and may have {bounds.all_bytes} together."
        raise RefusedError(quota_exceeded(message))
    return bounds.all_bytes - used


def _read_files(folder: TenantFolder) -> Iterator[StoredFile]:
    for entry in _entries(folder.files):
        if entry.name.endswith(".json") and not entry.name.startswith("."):
            file = _read_file(Path(entry.path))
            if file is not None:
                yield file


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _read_file(path: Path) -> StoredFile | None:
    """Return what a file is; None: it is gone, or a damaged disk."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredFile)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
