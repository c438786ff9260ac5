"""Tries mutants: a forked child runs the tests on a copy of the repository in which one file is the mutant."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PRELOADED = ("pytest", "numpy", "torch", "msgspec", "aiohttp", "pydantic")
"""Imported once before the forks: they are most of the time that a short test run takes."""
PACKAGES = (
    *("control", "decode_worker", "engine", "flexible_worker", "gateway", "kernels", "kv_transfer", "local"),
    *("model_fetch", "operator", "prefill_worker", "simulate", "wire", "worker"),
)
LEAST_S = 60.0
"""A mutant's tests may take five times as long as the source's own, and at least this."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The end of one test run: passed, failed, or ended by its deadline."""

    outcome: str
    seconds: float
    output: str

    @property
    def is_killed(self) -> bool:
        return self.outcome != "passed"


class Copy:
    """A copy of the repository's tracked files in a folder of its own, and of the Python path that it needs."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
        for name in filter(None, listing.stdout.split("\0")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)

    def run(self, source: str | None, path: str, tests: Sequence[str], limit_s: float) -> TrialResult:
        """Run tests with `source` in place of the file at `path`; None: with the unchanged file."""
        file = self.folder / path
        original = file.read_text()
        try:
            if source is not None:
                file.write_text(source)
                self._drop_bytecode(file)
            return self._fork_tests(tests, limit_s, keeps_bytecode=source is None)
        finally:
            file.write_text(original)
            self._drop_bytecode(file)

    def _drop_bytecode(self, file: Path) -> None:
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def _fork_tests(self, tests: Sequence[str], limit_s: float, *, keeps_bytecode: bool) -> TrialResult:
        log, began = self.folder / "trial.log", time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._child(tests, log, keeps_bytecode)
        outcome = _await_child(pid, began + limit_s)
        return TrialResult(outcome, time.monotonic() - began, log.read_text(errors="replace")[-4_000:])

    def _child(self, tests: Sequence[str], log: Path, keeps_bytecode: bool) -> None:
        code = 3
        try:
            os.setsid()
            sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.chdir(self.folder)
            paths = [str(self.folder / package) for package in PACKAGES]
            os.environ |= {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}
            if not keeps_bytecode:
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
                sys.dont_write_bytecode = True
            sys.path[:0] = paths
            pytest = importlib.import_module("pytest")
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={self.folder}", *tests]))
        except BaseException:  # noqa: BLE001 - the outermost level of this process; the parent reads its log
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)  # the parent's own exit handlers are not the child's


def preload() -> None:
    """Import what every trial needs and no mutant can be in."""
    for name in PRELOADED:
        importlib.import_module(name)


def _await_child(pid: int, until_s: float) -> str:
    """The outcome of the child's test run. Ends its whole session afterwards, also past the deadline."""
    try:
        while time.monotonic() < until_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
            time.sleep(0.02)
        return "too slow"
    finally:
        _end_session(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _end_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
