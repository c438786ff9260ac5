"""The folder of files and batches, which gateway processes share: paths, locks, and writes that survive a kill.

    active/BATCH                                  a batch that has not ended; its content is the tenant's folder
    tenants/TENANT/lock                           held while the tenant's files change
    tenants/TENANT/files/FILE.json, FILE.data     a file: what it is, and its bytes
    tenants/TENANT/uploads/FILE                   bytes that arrive
    tenants/TENANT/batches/BATCH/record.json …    a batch

TENANT is a digest of the tenant's name. Ids are random, and only ids in their exact form become parts of a path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE_ID: Final = re.compile(r"file-[0-9a-f]{32}")
BATCH_ID: Final = re.compile(r"batch_[0-9a-f]{32}")


def new_file_id() -> str:
    """An id that nobody can guess."""
    return f"file-{secrets.token_hex(16)}"


def new_batch_id() -> str:
    """An id that nobody can guess."""
    return f"batch_{secrets.token_hex(16)}"


class TenantFolder:
    """One tenant's part of the folder."""

    def __init__(self, root: Path, tenant: str) -> None:
        self.key = hashlib.sha256(f"tenant {tenant}".encode()).hexdigest()[:32]
        self.root = root
        self.path = root / "tenants" / self.key
        self.files, self.uploads, self.batches = self.path / "files", self.path / "uploads", self.path / "batches"

    def make(self) -> None:
        """Make the folders. Raises OSError."""
        for folder in (self.files, self.uploads, self.batches):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the tenant's files still for other processes and threads, for the time of a few system calls."""
        self.make()
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def active_folder(root: Path) -> Path:
    """The folder with an entry for each batch that has not ended."""
    return root / "active"


def check_batch_folder(root: Path) -> None:
    """Raises OSError unless files can be made in the folder."""
    active_folder(root).mkdir(parents=True, exist_ok=True, mode=0o750)
    (root / "tenants").mkdir(exist_ok=True, mode=0o750)
    probe = active_folder(root) / f".probe-{os.getpid()}"
    probe.touch()
    probe.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or replace it, at once. Raises OSError; the former content stays then."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names in a folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold_lock(descriptor: int) -> None:
    """Lock a file that this process has just made, until the descriptor is closed. Raises OSError."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, which holds the lock until it is closed; None: another process has it, or
    the file is gone. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
