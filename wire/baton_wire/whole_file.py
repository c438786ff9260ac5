"""Files that a reader sees whole or not at all, also where the disk is full in the middle of writing one."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace the file's content. Raises OSError that names `path`, and leaves no draft then."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_all(draft, content, mode)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise with_path(error, path) from error


def write_all(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file that has no readers yet; a link in its place is refused. Raises OSError, and leaves a torn file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def with_path(error: OSError, path: Path) -> OSError:
    """The same error naming its file: an error of `write` names none."""
    return OSError(error.errno, error.strerror or str(error), str(path))
