"""The run directory of a deployment: a private directory for its files, below one private directory for all.

That is `$XDG_RUNTIME_DIR/baton`, or `/tmp/baton-UID` without that variable. Only the owner may enter it; a directory
that another user owns or could read is refused, never repaired. A file lock shows that a deployment runs: the kernel
releases it when the process ends.
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
from baton_local.fleet.starts import living_starts
from baton_wire.suggestions import suggestion
from baton_wire.whole_file import write_whole

KEY_BYTES = 32
LOCK_TRIES = 5
LOCK_TRY_S = 0.05
KEPT_S = 7 * 86_400.0
"""How long the folder of a run that has ended is kept, with its logs and its memory of sizing."""
MONTH_KEPT_S = 32 * 86_400.0
"""For runs with tenants, whose tokens of the month are counted there."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths in one deployment's run directory."""

    root: Path

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def manifest(self) -> Path:
        """The manifest that `baton up MODEL` made."""
        return self.root / "deployment.yaml"

    @property
    def api_keys(self) -> Path:
        """The clients' API key, if `baton up` got one as text."""
        return self.root / "api-keys"

    @property
    def tenants(self) -> Path:
        """The compiled table of LLMTenants."""
        return self.root / "tenants"

    @property
    def ledger(self) -> Path:
        """The ledger of what requests used (`baton usage`)."""
        return self.root / "ledger"

    @property
    def batches(self) -> Path:
        """The files and batches of `/v1/files` and `/v1/batches`."""
        return self.root / "batches"

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
        """The record of the run, for the other commands (see `record`)."""
        return self.root / "run.json"

    @property
    def scrape_targets(self) -> Path:
        """The addresses with metrics, for a Prometheus on this machine."""
        return self.root / "prometheus.json"

    @property
    def sizing(self) -> Path:
        """The memory of sizing, from one run to the next."""
        return self.root / "sizing.json"

    @property
    def history(self) -> Path:
        """The history of the deployment, from one run to the next."""
        return self.root / "history.json"

    @property
    def paced(self) -> Path:
        """Step times of emulated workers."""
        return self.root / "paced.json"

    @property
    def reserve(self) -> Path:
        """A file that is deleted when the disk is full, to free space."""
        return self.root / "reserve"

    def discovery(self, role: str) -> Path:
        return self.root / f"{role}.json"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"


def base_directory(environment: dict[str, str] | os._Environ[str] = os.environ) -> Path:
    """The private directory of all run directories, created if missing. Raises StartError if it is not private."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "baton" if runtime and Path(runtime).is_dir() else Path("/tmp") / f"baton-{os.getuid()}"
    _private_directory(path)
    return path


def directory_name(namespace: str, name: str) -> str:
    """The name of a deployment's run directory; neither part can contain a dot or a slash."""
    return f"{namespace}.{name}"


class StartingError(NotRunningError):
    """No deployment runs yet, but a `baton up` is about to start one."""


def refuse_running(base: Path, directory: str, rename: str) -> None:
    """Refuse a second deployment of a name. `rename`: how to give it another one. Raises StartError."""
    run = RunDir(base / directory)
    if is_held(run):
        raise _already_running(run, rename)


def _already_running(run: RunDir, rename: str) -> StartError:
    pid = holder(run)
    who = "" if pid is None else f" (pid {pid})"
    stop = f"stop it with `baton down --name {run.root.name.partition('.')[2]}`"
    return StartError(f"{run.root.name} is already running{who}: {stop}, or use another {rename}")


@contextmanager
def claimed(base: Path, directory: str, rename: str = "metadata.name") -> Iterator[RunDir]:
    """A fresh run directory, locked while the context lasts. Raises StartError when the deployment is running.

    Keys and addresses are removed at the end. Logs stay until the next start, ledger and memory of sizing for longer.
    """
    run = RunDir(base / directory)
    _private_directory(run.root)
    with run.lock.open("a+") as lock:
        if not _locked(lock):
            raise _already_running(run, rename)
        with suppress(OSError):  # a full disk: the lock holds without it
            os.ftruncate(lock.fileno(), 0)
            os.pwrite(lock.fileno(), f"{os.getpid()}\n".encode(), 0)  # a buffered text would be written again on close
        _clear(run, keep_logs=False)
        for path in (run.keys, run.announcements, run.logs):
            path.mkdir(mode=0o700)
        try:
            yield run
        finally:
            _clear(run, keep_logs=True)
            with suppress(OSError):
                os.utime(run.lock)  # the end of the run


def is_held(run: RunDir) -> bool:
    """True while a living process holds the lock of the run directory."""
    try:
        with run.lock.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def find_running(base: Path) -> list[RunDir]:
    """The run directories of all deployments that run."""
    return [run for run in _runs(base) if is_held(run)]


def _runs(base: Path) -> list[RunDir]:
    """The run directories of all deployments that run or have run."""
    return [RunDir(path) for path in sorted(base.iterdir()) if (path / "lock").is_file()]


def find_run(base: Path, name: str | None, must_run: bool = True) -> RunDir:
    """The run directory of a deployment, by `name` or `namespace.name`; without a name, the one that runs, or with
    `must_run` False the last one that did.

    Raises NotRunningError when none matches, or more than one does; StartingError when one may match soon.
    """
    runs = _runs(base)
    running = [run for run in runs if is_held(run)]
    if name is not None:
        return _named(running if must_run else runs, name, must_run, base, _starting(base, running))
    if len(running) == 1:
        return running[0]
    if running:
        raise NotRunningError(f"several deployments are running ({_names(running)}): choose one with --name NAME")
    if must_run or not runs:
        if starting := _starting(base, running):
            raise _not_up_yet(starting)
        raise NotRunningError(f"no deployment {'is running' if must_run else 'has run'} in {base}: {_START}")
    return max(runs, key=_ended_at)


def _ended_at(run: RunDir) -> float:
    """When a run ended, by the wall clock: a killed one at the last line of its logs."""
    return max(path.stat().st_mtime for path in (run.lock, *run.logs.glob("*.log")))


_START = "start one with `baton up MODEL`"


def _starting(base: Path, running: list[RunDir]) -> list[int]:
    """The process ids of every `baton up` that has no deployment yet."""
    holders = {holder(run) for run in running}
    return [pid for pid in living_starts(base) if pid not in holders]


def _not_up_yet(pids: list[int]) -> StartingError:
    return StartingError(f"`baton up` (pid {pids[0]}) is still checking its model")


def _named(runs: list[RunDir], name: str, must_run: bool, base: Path, starting: list[int]) -> RunDir:
    """The run with that name. Raises NotRunningError, which lists those that there are, or StartingError."""
    suffix = " is running" if must_run else ""
    matches = [run for run in runs if name in (run.root.name, run.root.name.partition(".")[2])]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NotRunningError(f"{name} is the name of several deployments: choose one of {_names(matches)}")
    if must_run and starting:
        raise _not_up_yet(starting)
    if not runs:
        raise NotRunningError(f"no deployment named {name}{suffix}, nor any other, in {base}: {_START}")
    known = [text for run in runs for text in (run.root.name.partition(".")[2], run.root.name)]
    meant = suggestion(name, known)
    raise NotRunningError(f"no deployment named {name}{suffix}{meant or f'; there are {_names(runs)}'}")


def _names(runs: list[RunDir]) -> str:
    return ", ".join(run.root.name for run in runs)


def remove_old(base: Path, wall_s: float) -> list[str]:
    """Remove the folders of runs that ended `KEPT_S` (with tenants `MONTH_KEPT_S`) ago or earlier; returns their names.

    Each is renamed while its lock is held, so that a deployment of that name which starts meanwhile makes a new one.
    """
    removed = []
    for run in _runs(base):
        with suppress(OSError), run.lock.open("r+") as lock:  # BlockingIOError: it runs
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept_s = MONTH_KEPT_S if run.tenants.is_dir() else KEPT_S
            if wall_s - run.lock.stat().st_mtime < kept_s:
                continue
            aside = base / f".removing-{run.root.name}"
            os.rename(run.root, aside)
            shutil.rmtree(aside)
            removed.append(run.root.name)
    return removed


def write_key(run: RunDir) -> None:
    """A fresh link key for this run, readable by the owner alone. The file's name is the key id."""
    write_private(run.keys / f"run-{secrets.token_hex(4)}", secrets.token_hex(KEY_BYTES))


def write_json(path: Path, value: object) -> None:
    """Write plain data atomically: a reader sees all of it or the previous content. Raises OSError."""
    write_private(path, json.dumps(value))


def write_private(path: Path, text: str) -> None:
    """Write a file that only the owner can read, atomically. Raises OSError, which names the file."""
    write_whole(path, text.encode(), mode=0o600)


def _locked(lock: IO[str]) -> bool:
    """Take the lock; False: another process holds it. Retries briefly, because a command that checks the lock holds it
    for a moment. Raises StartError on a file system without locks.
    """
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _is_in_place(lock)
        except BlockingIOError:
            time.sleep(LOCK_TRY_S)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(
                f"{lock.name}: cannot be locked: {reason}; set XDG_RUNTIME_DIR to a local folder"
            ) from error
    return False


def _is_in_place(lock: IO[str]) -> bool:
    """True. Raises StartError if another command has just removed the old folder that the lock was in."""
    try:
        if os.fstat(lock.fileno()).st_ino == os.stat(lock.name).st_ino:
            return True
    except FileNotFoundError:
        pass
    raise StartError(f"{lock.name}: another command has just removed this old folder: try again")


def holder(run: RunDir) -> int | None:
    """The process id of the `baton up` that holds the lock; None: the lock file does not say."""
    try:
        pid = run.lock.read_text()[:32].strip()
    except OSError:
        return None
    return int(pid) if pid.isdecimal() else None


def _private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StartError(f"{path} is not a directory")
    if status.st_uid != os.getuid():
        raise StartError(f"{path} belongs to another user")
    if status.st_mode & 0o077:
        raise StartError(f"{path} is open to other users: its mode must be 0700")


def _clear(run: RunDir, keep_logs: bool) -> None:
    names = {run.lock.name, run.sizing.name, run.ledger.name, run.history.name, run.batches.name, run.tenants.name}
    names |= {run.logs.name} if keep_logs else set()
    for path in run.root.iterdir():
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for table in run.tenants.glob("*.json"):  # what tenants used this month stays, next to their keys' digests
        table.unlink()
