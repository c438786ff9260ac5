"""The lock of one model in a cache: one process fetches it at a time, also from different nodes.

`flock` holds it where the file system has locks: the kernel frees it with the process. Lustre without `-o flock` and
NFS without lockd have none. There a file holds the lock, whose text its holder renews; a file whose text stays the same
for STALE_S belongs to a process that is gone, and is taken over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from baton_model_fetch.errors import Busy

_log = logging.getLogger("baton.fetch")

RENEW_S, STALE_S = 10.0, 60.0
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM})
_HELD = "another process fetches the same model into this cache"


class HeldLock:
    """A lock that this process holds."""

    def check(self) -> None:
        """Raises Busy if another process has taken the lock over."""


@contextlib.contextmanager
def hold(path: Path) -> Iterator[HeldLock]:
    """Hold the lock at `path`. Raises Busy while another process has it, OSError."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(_HELD) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.info("the cache has no flock, which a file stands in for: %s", error)
        else:
            yield HeldLock()
            return
    with _LockFile(path.with_suffix(".held")) as lock:
        yield lock


class _LockFile(HeldLock):
    """A file as a lock. A thread renews its text, as the fetch may be busy with a hash for minutes."""

    def __init__(self, path: Path) -> None:
        self._path, self._token, self._count = path, secrets.token_hex(8), 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lock", daemon=True)

    def __enter__(self) -> _LockFile:
        try:
            self._create()
        except FileExistsError:
            self._take_over()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_ours():
                self._path.unlink()

    def check(self) -> None:
        if not self._is_ours():
            raise Busy(_HELD)

    def _is_ours(self) -> bool:
        return _read(self._path).startswith(f"{self._token} ")

    def _create(self) -> None:
        with self._path.open("x", encoding="ascii") as file:
            file.write(f"{self._token} 0")

    def _take_over(self) -> None:
        """Raises Busy if the file's holder lives, or another process takes it over first."""
        seen, until = _read(self._path), time.monotonic() + STALE_S
        while time.monotonic() < until:
            if _read(self._path) != seen:
                raise Busy(_HELD)
            time.sleep(min(RENEW_S, STALE_S / 4))
        stale = self._path.with_suffix(f".{self._token}")
        try:
            self._path.rename(stale)
            stale.unlink()
            self._create()
        except (FileExistsError, FileNotFoundError):
            raise Busy(_HELD) from None
        _log.info("the cache was held by a process that is gone: %s", seen[:40])

    def _keep(self) -> None:
        while not self._ends.wait(RENEW_S):
            self._count += 1
            with contextlib.suppress(OSError):  # a missed renewal is made up by the next
                if self._is_ours():
                    self._path.write_text(f"{self._token} {self._count}", encoding="ascii")


def _read(path: Path) -> str:
    """The text of a lock file; empty: there is none, or it cannot be read now."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
