"""The check of a batch's input: every line is a request to the batch's endpoint, and no id occurs twice. It blocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from baton_gateway.batches.batch_record import MAX_SHOWN_ERRORS, BatchProblem
from baton_gateway.batches.lines import FIELDS, BadLine, BatchLine, read_lines

PAUSE_BYTES: Final = 1 << 20
PAUSE_S: Final = 0.005
"""A pause after each MiB, so that a large file does not keep the interpreter from requests."""


def check_input(path: Path, endpoint: str, most_lines: int) -> tuple[int, list[BatchProblem]]:
    """Return the number of requests, and what is wrong with the file. Raises OSError."""
    total = size = 0
    problems: list[BatchProblem] = []
    for line in read_lines(path):
        total += 1
        if (problem := _check(line, endpoint)) is not None:
            problems.append(problem)
        if total > most_lines:
            message = f"The file has more than the {most_lines} requests that a batch may have."
            return total, [BatchProblem("too_many_requests", message, "input_file_id")]
        if len(problems) >= MAX_SHOWN_ERRORS:
            break
        size += line.size
        if size >= PAUSE_BYTES:
            size = 0
            time.sleep(PAUSE_S)
    if not total:
        problems.append(BatchProblem("empty_file", "The file has no requests.", "input_file_id"))
    return total, problems


def _check(line: BatchLine | BadLine, endpoint: str) -> BatchProblem | None:
    if isinstance(line, BadLine):
        field = line.message.partition(":")[0]
        return BatchProblem(line.code, line.message, field if field in FIELDS else None, line.number)
    if line.url != endpoint:
        return BatchProblem("mismatched_url", f"url: must be {endpoint}, as the batch says", "url", line.number)
    return None
