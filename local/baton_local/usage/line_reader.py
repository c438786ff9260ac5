"""Reads lines of the ledger from folders, files and streams, one at a time."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from baton_local.errors import LocalError, StartError
from baton_local.usage.usage_sums import UsageSums
from baton_wire.ledger_line import LINES_SUFFIX, decode_line

MAX_READ_BYTES = 1 << 16
"""Longer lines are none of the ledger's."""
MARK = b'{"ledger":'
"""The beginning of a line. What stands before it, such as the time that a log collector adds, is ignored."""
STREAM = Path("-")


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files of lines at these paths, the older ones of a process first. Raises StartError."""
    files: list[Path] = []
    for path in paths:
        if path == STREAM or path.is_file():
            files.append(path)
        elif path.is_dir():
            files += sorted(
                child for child in path.rglob("*") if child.name.endswith((LINES_SUFFIX, f"{LINES_SUFFIX}.gz"))
            )
        else:
            raise StartError(f"{path}: no such file or folder")
    return files


def read_all(files: Sequence[Path], sums: UsageSums) -> None:
    """Add every line of these files. Raises LocalError where a file cannot be read to its end."""
    for path in files:
        try:
            with _opened(path) as opened:
                for content in _lines(opened):
                    _add(content, sums)
        except (OSError, EOFError, zlib.error) as error:
            raise LocalError(f"{path}: cannot be read: {error}") from error


def _add(content: bytes, sums: UsageSums) -> None:
    start = content.find(MARK)
    if start < 0:
        return
    try:
        sums.add(decode_line(content[start:].rstrip()))
    except ValueError:
        sums.unread += 1


def _opened(path: Path) -> IO[bytes] | nullcontext[IO[bytes]]:
    if path == STREAM:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _lines(opened: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of a longer one the pieces, of which one at most is a line."""
    while content := opened.readline(MAX_READ_BYTES):
        yield content
