"""Where a running deployment keeps its files on this machine: one private directory each, below one private directory.

`$XDG_RUNTIME_DIR/baton`, or `/tmp/baton-UID` where there is none. Nobody but the owner may enter it; one that somebody
else owns or could read is refused, never repaired. A file lock says whether a deployment runs: it cannot stay behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from baton_local.errors import NotRunningError, StartError
from baton_wire.whole_file import write_whole

KEY_BYTES = 32
LOCK_TRIES = 5
LOCK_TRY_S = 0.05


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one deployment."""

    root: Path

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def manifest(self) -> Path:
        """The LLMDeployment, where `baton up` made it from a model alone."""
        return self.root / "deployment.yaml"

    @property
    def api_keys(self) -> Path:
        """The key that clients need, where `baton up` was given one as text."""
        return self.root / "api-keys"

    @property
    def announcements(self) -> Path:
        return self.root / "announce"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def record(self) -> Path:
        """What runs, for the other commands; see `record`."""
        return self.root / "run.json"

    @property
    def sizing(self) -> Path:
        """What sizing remembers from one run to the next."""
        return self.root / "sizing.json"

    @property
    def paced(self) -> Path:
        """Step times of emulated workers."""
        return self.root / "paced.json"

    @property
    def reserve(self) -> Path:
        """Room that is given up when the disk is full."""
        return self.root / "reserve"

    def discovery(self, role: str) -> Path:
        return self.root / f"{role}.json"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"


def base_directory(environment: dict[str, str] | os._Environ[str] = os.environ) -> Path:
    """The private directory that holds all run directories; made when missing. Raises StartError if not private."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "baton" if runtime and Path(runtime).is_dir() else Path("/tmp") / f"baton-{os.getuid()}"
    _private_directory(path)
    return path


def directory_name(namespace: str, name: str) -> str:
    """Of a deployment's run directory; neither part can hold a dot or a slash."""
    return f"{namespace}.{name}"


@contextmanager
def claimed(base: Path, directory: str) -> Iterator[RunDir]:
    """A fresh run directory, held for as long as the context lasts. Raises StartError when the deployment is running.

    Keys and addresses are removed at the end; logs stay until the deployment is started again, what sizing remembers
    for longer.
    """
    run = RunDir(base / directory)
    _private_directory(run.root)
    with run.lock.open("a+") as lock:
        if not _locked(lock):
            holder = _holder(lock)
            raise StartError(f"{directory} is already running{holder}: stop it first, or use another metadata.name")
        with suppress(OSError):  # a full disk: the lock holds without it
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        _clear(run, keep_logs=False)
        for path in (run.keys, run.announcements, run.logs):
            path.mkdir(mode=0o700)
        try:
            yield run
        finally:
            _clear(run, keep_logs=True)


def is_held(run: RunDir) -> bool:
    """Whether a living process holds the run directory."""
    try:
        with run.lock.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def find_run(base: Path, name: str | None, must_run: bool = True) -> RunDir:
    """The run directory of a deployment, by `name` or `namespace.name`; without a name the only one.

    Raises NotRunningError when there is none or more than one.
    """
    runs = [RunDir(path) for path in sorted(base.iterdir()) if (path / "lock").exists()]
    if must_run:
        runs = [run for run in runs if is_held(run)]
    if name is not None:
        runs = [run for run in runs if name in (run.root.name, run.root.name.partition(".")[2])]
    if len(runs) == 1:
        return runs[0]
    asked = f"no deployment named {name}" if name is not None else "no deployment"
    if not runs:
        raise NotRunningError(f"{asked} is running: start one with `baton up -f FILE`")
    names = ", ".join(run.root.name for run in runs)
    raise NotRunningError(f"several deployments are there ({names}): choose one by name")


def write_key(run: RunDir) -> None:
    """A fresh link key for this run, readable by the owner alone. The file's name is the key id."""
    write_private(run.keys / f"run-{secrets.token_hex(4)}", secrets.token_hex(KEY_BYTES))


def write_json(path: Path, value: object) -> None:
    """Write plain data so that a reader sees all of it or the former content. Raises OSError, and leaves no draft."""
    write_private(path, json.dumps(value))


def write_private(path: Path, text: str) -> None:
    """Write a file that only the owner can read, whole or not at all. Raises OSError, which names it."""
    write_whole(path, text.encode(), mode=0o600)


def _locked(lock: IO[str]) -> bool:
    """Take the lock; another command that looks whether it is held may hold it for a moment.

    Raises StartError on a file system without locks.
    """
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOCK_TRY_S)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(
                f"{lock.name}: cannot be locked: {reason}; set XDG_RUNTIME_DIR to a local folder"
            ) from error
    return False


def _holder(lock: IO[str]) -> str:
    """Which process holds the lock, as it wrote into it."""
    lock.seek(0)
    pid = lock.read(32).strip()
    return f" (pid {pid})" if pid.isdecimal() else ""


def _private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StartError(f"{path} is not a directory")
    if found.st_uid != os.getuid():
        raise StartError(f"{path} belongs to another user")
    if found.st_mode & 0o077:
        raise StartError(f"{path} is open to other users: its mode must be 0700")


def _clear(run: RunDir, keep_logs: bool) -> None:
    kept = {run.lock.name, run.sizing.name} | ({run.logs.name} if keep_logs else set())
    for path in run.root.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
