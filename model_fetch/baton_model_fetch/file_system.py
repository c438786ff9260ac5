"""Operations that file systems of cluster volumes may lack, and the meaning of their errors for the person who acts.

SMB shares and NFS with root_squash refuse `chmod`, object stores refuse `fsync` and the renaming of folders. The fetch
goes on without these. Errors that only an act on the volume can mend are refusals: another try would fail alike.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

_log = logging.getLogger("baton.fetch")

_ABSENT = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY})
"""Errors of file systems that do not have an operation."""
_NO_MODES = _ABSENT | {errno.EPERM, errno.EROFS, errno.EACCES}
_NO_FOLDER_RENAME = _ABSENT | {errno.EXDEV}
_REFUSALS = {
    errno.EROFS: "the volume is read-only: the fetch needs a claim that it may write, or one that has the model",
    errno.ENOSPC: "the volume is full: raise spec.model.cache.size, or the size of the claim in its claimName",
    errno.EDQUOT: "the volume's quota is used up: raise the quota of its storage, or free space there",
    errno.EFBIG: "the volume does not take files of this size",
    **dict.fromkeys(
        (errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ, errno.ENOTSUP, errno.ENOSYS, errno.ELOOP, errno.EMLINK),
        "the volume does not take this file name or operation: another storage class is needed",
    ),
}


def explain(error: OSError, place: Path) -> tuple[bool, str]:
    """Classify an error of the volume: whether it is a refusal, which another try would meet again; and its words.
    `place`: the path to name where the error names none."""
    text = f"{error.filename or place}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        user = f"the claim is not writable by user {os.geteuid()}: fsGroup is not honoured there"
        return True, f"{text}: {user}; give the volume to this user or group (docs/fitting.md)"
    meaning = _REFUSALS.get(error.errno or 0)
    return (False, text) if meaning is None else (True, f"{text}: {meaning}")


class VolumeModes:
    """Sets modes of files, as far as the file system has them. The first refusal is logged, later ones are not."""

    def __init__(self) -> None:
        self._is_logged = False

    def set(self, path: Path, mode: int) -> None:
        """Raises OSError for errors other than the lack of modes."""
        try:
            os.chmod(path, mode)
        except OSError as error:
            if error.errno not in _NO_MODES:
                raise
            if not self._is_logged:
                _log.info("the cache keeps no modes of files, which the fetch does without: %s", error)
            self._is_logged = True

    def make_writable(self, folder: Path) -> None:
        """Let this user write a folder and everything in it."""
        self.set(folder, 0o755)
        for path in folder.rglob("*"):
            if not path.is_symlink():
                self.set(path, 0o755 if path.is_dir() else 0o644)


def sync(descriptor: int) -> None:
    """Flush a file or folder, where the file system can. Raises OSError of a disk that fails."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def move_folder(source: Path, target: Path, last: str) -> None:
    """Rename a folder. Where the file system cannot, its files are moved one by one, the file `last` after all others,
    so that a reader which asks for that file never finds a part. `target` does not exist. Raises OSError."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in _NO_FOLDER_RENAME:
            raise
        _log.info("the cache cannot rename folders: files are moved one by one: %s", error)
        files = [path for path in source.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path == source / last, path)):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            _move_file(path, place)


def _move_file(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in _NO_FOLDER_RENAME:
            raise
        shutil.copyfile(source, target)
        source.unlink()
