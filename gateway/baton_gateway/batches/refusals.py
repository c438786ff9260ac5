"""The errors with which clients of files and batches are refused."""

from __future__ import annotations

from baton_gateway.errors import INVALID, RATE_LIMIT, SERVER, Problem

MAX_SHOWN_CHARS = 80


def file_not_found(file_id: str, param: str = "id") -> Problem:
    return Problem(404, INVALID, f"No such file: '{file_id[:MAX_SHOWN_CHARS]}'.", param, "file_not_found")


def batch_not_found(batch_id: str) -> Problem:
    return Problem(404, INVALID, f"No such batch: '{batch_id[:MAX_SHOWN_CHARS]}'.", "id", "batch_not_found")


def quota_exceeded(message: str) -> Problem:
    """The tenant stores as much as it may."""
    return Problem(400, INVALID, f"{message} Delete files that you no longer need.", "file", "file_quota_exceeded")


def file_too_large(most_bytes: int) -> Problem:
    message = f"'file' is larger than the {most_bytes} bytes that are allowed."
    return Problem(413, INVALID, message, "file", "file_too_large")


def line_too_long(line: int, most_bytes: int) -> Problem:
    message = f"'file' has a line {line} that is longer than the {most_bytes} bytes that a request may have."
    return Problem(413, INVALID, message, "file", "line_too_long")


def file_in_use(batch_id: str) -> Problem:
    message = f"The file is the input of {batch_id}, which has not ended: cancel the batch first."
    return Problem(409, INVALID, message, "id", "file_in_use")


def batch_has_ended(status: str) -> Problem:
    return Problem(409, INVALID, f"The batch is {status}: it cannot be cancelled.", "id", "batch_has_ended")


def too_many_uploads(most: int) -> Problem:
    message = f"You upload {most} files at the same time already, which is as many as you may."
    return Problem(429, RATE_LIMIT, message, None, "too_many_uploads", 1)


def too_many_batches(most: int) -> Problem:
    message = f"You have {most} batches that have not ended, which is as many as you may have."
    return Problem(429, RATE_LIMIT, message, None, "too_many_batches", 60)


def storage_full() -> Problem:
    """The disk is full, or the installation's folder cannot be written."""
    return Problem(503, SERVER, "Files cannot be stored at present.", None, "storage_unavailable", 30)
