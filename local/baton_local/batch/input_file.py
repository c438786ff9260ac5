"""The input file of a batch, read line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from baton_gateway.batches.lines import BadLine, BatchLine, read_lines
from baton_local.errors import StartError


def read_input(path: Path) -> Iterator[BatchLine | BadLine]:
    """Yield the lines in order; blank ones are skipped. Raises StartError when the file cannot be read."""
    try:
        yield from read_lines(path)
    except OSError as error:
        raise StartError(f"{path}: {os.strerror(error.errno or 0)}") from error
