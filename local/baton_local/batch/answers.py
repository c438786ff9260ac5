"""The output file of a batch: appended to under a lock, and never shortened by a byte that a batch did not write.

A file is accepted when it is new, or when it contains answers of a batch and nothing else. An interrupted write leaves
at most one torn line, and only that is cut off: it begins like an answer, and follows whole answers. Refusals leave the
file only when a run has to ask them again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Container, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from baton_gateway.batches.lines import ANSWER_PREFIX, answered_id
from baton_local.batch.refusals import refusal_of
from baton_local.errors import LocalError, StartError

_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without locks."""
_OTHER: Final = "OUT must be a file of a batch's answers, or a new one"


class Answers:
    """The output file, locked while the context lasts. `done` has the ids of the answers in it, `refused` the statuses
    of those that are refusals."""

    def __init__(self, path: Path, source: Path) -> None:
        """`source` is the input. Raises StartError for a file that is not a batch's output, and leaves it unchanged."""
        self._path = path
        self.refused: dict[str, int] = {}
        self.first_refusal = ""
        """The first refusal in the file, in words; empty: there is none."""
        _check_source(source)
        self._file, self._is_new = _locked(path, source)
        try:
            self._size, self.done = self._look()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file; delete it if this run made it and wrote nothing."""
        if self._is_new and self._size == 0:
            Path(os.path.realpath(self._path)).unlink(missing_ok=True)
        try:
            os.fsync(self._file)
        except OSError as reason:  # a file system that accepted more than it can store reports it here
            if error is None:
                raise LocalError(f"{self._path}: {os.strerror(reason.errno or 0)}; check its last answers") from reason
        finally:
            os.close(self._file)

    def write(self, line: bytes, /) -> None:
        """Append one whole line. Raises LocalError; then nothing of the line is left in the file."""
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            if os.fstat(self._file).st_size == self._size + len(line) - len(left):
                os.ftruncate(self._file, self._size)
            raise LocalError(f"{self._path}: {os.strerror(error.errno or 0)}; the same command resumes") from error
        self._size += len(line)

    def drop_refused(self) -> None:
        """Remove the refusals from the file, so that their requests are asked again. The file is replaced as a whole.
        Raises LocalError; then the file is as it was."""
        path = Path(os.path.realpath(self._path))
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            file = _replace(path, draft, self._file, self.refused)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise LocalError(f"{self._path}: {os.strerror(error.errno or 0)}; its refusals are left in it") from error
        os.close(self._file)
        self._file, self._size = file, os.fstat(file).st_size
        self.done -= self.refused.keys()
        self.refused, self.first_refusal = {}, ""

    def _look(self) -> tuple[int, set[str]]:
        """The file's size after mending its last line, and the ids in it."""
        done: set[str] = set()
        whole, torn = 0, b""
        for number, raw in enumerate(_lines(self._file), start=1):
            answer_id = answered_id(raw)
            if not raw.endswith(b"\n"):
                torn = raw
            elif answer_id is not None:
                done.add(answer_id)
                self._note_refusal(answer_id, raw)
                whole += len(raw)
            else:
                raise StartError(f"{self._path}, line {number}: not an answer of a batch; {_OTHER}")
        if (answer_id := answered_id(torn)) is not None:  # only its line end is missing
            self._end_line()
            self._note_refusal(answer_id, torn)
            return whole + len(torn) + 1, done | {answer_id}
        if torn and not (torn.startswith(ANSWER_PREFIX) or (done and ANSWER_PREFIX.startswith(torn))):
            raise StartError(f"{self._path}: its last line is not of a batch; {_OTHER}")
        if torn:
            os.ftruncate(self._file, whole)
        return whole, done

    def _note_refusal(self, answer_id: str, line: bytes) -> None:
        if (refusal := refusal_of(line)) is not None:
            self.refused[answer_id], reason = refusal
            self.first_refusal = self.first_refusal or reason

    def _end_line(self) -> None:
        try:
            os.write(self._file, b"\n")
        except OSError as error:
            raise StartError(f"{self._path}: {os.strerror(error.errno or 0)}") from error


def _replace(path: Path, draft: Path, file: int, without: Container[str]) -> int:
    """Replace a file by its answers without those of some ids; returns the new descriptor, locked as the old one is.
    Raises OSError."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    copy = os.open(draft, flags, stat.S_IMODE(os.fstat(file).st_mode))
    try:
        with contextlib.suppress(OSError):  # a file system without locks, as for the file itself
            fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for line in _lines(file):
            left = memoryview(b"" if answered_id(line) in without else line)
            while left:
                left = left[os.write(copy, left) :]
        os.fsync(copy)
        os.replace(draft, path)
    except BaseException:
        os.close(copy)
        raise
    return copy


def _lines(file: int) -> Iterator[bytes]:
    """The lines of a file that begins like an answer; of any other file only its first bytes."""
    with os.fdopen(os.dup(file), "rb") as reader:
        reader.seek(0)
        first = reader.read(len(ANSWER_PREFIX))
        if first.startswith(ANSWER_PREFIX):
            reader.seek(0)
            yield from reader
        elif first:
            yield first


def _check_source(source: Path) -> None:
    try:
        is_file = stat.S_ISREG(source.stat().st_mode)
    except OSError as error:
        raise StartError(f"{source}: {os.strerror(error.errno or 0)}") from error
    if not is_file:
        raise StartError(f"{source}: not a file: IN is read twice, so it cannot be a pipe or a folder")


def _locked(path: Path, source: Path) -> tuple[int, bool]:
    """An open and locked descriptor of the file at `path`; True: the file was made here. Raises StartError."""
    while True:
        try:
            is_new = not path.exists()
            if not is_new:
                _check_output(path, source)
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StartError(f"{path}: {os.strerror(error.errno or 0)}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise StartError(
                f"{path}: another `baton batch` is writing to it: wait for it, or name another OUT"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(file)
                raise StartError(f"{path}: {os.strerror(error.errno or 0)}") from error
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file)):
            return file, is_new
        os.close(file)  # another batch has deleted or replaced the file meanwhile


def _check_output(path: Path, source: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise StartError(f"{path}: not a file: OUT is read when a batch resumes, so it cannot be a pipe or a device")
    if path.samefile(source):
        raise StartError(f"{path}: IN and OUT are the same file")
