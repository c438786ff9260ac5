"""The journal of a batch: its answers so far, each line appended by one write, of which a kill tears at most the last.

The two files of the journal become the batch's output and error files. One thread uses a journal.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from baton_gateway.batches.lines import ANSWER_PREFIX

JOURNAL_FILES: Final = ("output.jsonl", "errors.jsonl")
_ID_CHARS: Final = 24
_ID_AT: Final = len(ANSWER_PREFIX)


class AnswerJournal:
    """The open files of one batch's answers."""

    def __init__(self, folder: Path) -> None:
        """Opens the files and cuts off a torn last line. Raises OSError."""
        self.done: set[bytes] = set()
        """Digests of the ids of answered lines."""
        self._files: list[_LineFile] = []
        try:
            for name in JOURNAL_FILES:
                self._files.append(_LineFile(folder / name, self.done))
        except OSError:
            self.close()
            raise

    @property
    def completed(self) -> int:
        """Lines with an answer."""
        return self._files[0].lines

    @property
    def failed(self) -> int:
        """Lines with an error."""
        return self._files[1].lines

    def has(self, answer_id: str) -> bool:
        """Return whether the line with this id of its answer is answered."""
        return answer_id.encode()[-_ID_CHARS:] in self.done

    def write(self, line: bytes, *, is_error: bool) -> None:
        """Append one whole line. Raises OSError; what is left of the line goes before anything else is written."""
        self._files[is_error].append(line)
        self.done.add(line[_ID_AT : _ID_AT + _ID_CHARS])

    def sync(self) -> None:
        """Have the disk keep what was written. Raises OSError."""
        for file in self._files:
            file.cut_torn()
            os.fdatasync(file.descriptor)

    def close(self) -> None:
        for file in self._files:
            os.close(file.descriptor)
        self._files = []


class _LineFile:
    """One file of whole lines."""

    def __init__(self, path: Path, ids: set[bytes]) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self.lines = self._size = 0
        self._is_torn = False
        try:
            with os.fdopen(os.dup(self.descriptor), "rb") as reader:
                for line in reader:
                    if not line.endswith(b"\n"):
                        break
                    ids.add(line[_ID_AT : _ID_AT + _ID_CHARS])
                    self.lines += 1
                    self._size += len(line)
            os.ftruncate(self.descriptor, self._size)
        except OSError:
            os.close(self.descriptor)
            raise

    def append(self, line: bytes) -> None:
        self.cut_torn()
        left = memoryview(line)
        self._is_torn = True
        while left:
            left = left[os.write(self.descriptor, left) :]
        self._is_torn = False
        self._size += len(line)
        self.lines += 1

    def cut_torn(self) -> None:
        """Remove what a failed write left. Raises OSError."""
        if self._is_torn:
            os.ftruncate(self.descriptor, self._size)
            self._is_torn = False
