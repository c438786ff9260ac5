"""The files of a batch, in OpenAI's format: one JSON object a line, requests in, answers out.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    {"id": "…", "custom_id": "a", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}

A file that is broken is refused before anything runs; a request that is wrong gets an answer that says so. An answer
is appended in one write, so that an interrupted run leaves whole lines and at most one torn one, which is cut off.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from baton_gateway.errors import RefusedError as RefusedRequestError
from baton_gateway.http_api.json_body import parse_object
from baton_local.errors import StartError

URLS: Final = ("/v1/chat/completions", "/v1/completions")
FIELDS: Final = ("custom_id", "method", "url", "body")
MAX_ID_CHARS: Final = 512
MAX_LINE_BYTES: Final = 8 << 20
"""As much as the HTTP API takes in one body."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of the input file."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The requests in order; blank lines are skipped. Raises StartError naming the file, the line and the field."""
    seen: set[bytes] = set()
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                place = f"{path}, line {number}"
                if len(raw) > MAX_LINE_BYTES:
                    raise StartError(f"{place}: longer than the {MAX_LINE_BYTES} bytes that a request may have")
                if raw.strip():
                    line = _parse(raw, place)
                    digest = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
                    if digest in seen:
                        raise StartError(f"{place}: custom_id: {line.custom_id!r} occurs twice")
                    seen.add(digest)
                    yield line
    except OSError as error:
        raise StartError(f"{path}: {os.strerror(error.errno or 0)}") from error


def _parse(raw: bytes, place: str) -> BatchLine:
    try:
        fields = parse_object(raw)
    except RefusedRequestError as error:
        raise StartError(f"{place}: {error.problem.message}") from error
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise StartError(f"{place}: {unknown[0][:64]}: unknown field; allowed: {', '.join(FIELDS)}")
    custom_id, url, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        raise StartError(f"{place}: custom_id: must be a text of 1 to {MAX_ID_CHARS} characters")
    if fields.get("method") != "POST":
        raise StartError(f"{place}: method: must be POST")
    if not isinstance(url, str) or url not in URLS:
        raise StartError(f"{place}: url: must be one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        raise StartError(f"{place}: body: must be an object")
    return BatchLine(custom_id, url, body)


def answered_ids(path: Path) -> set[str]:
    """Custom ids that the output file has whole answers for; a torn last line is cut off the file.

    Raises StartError when the file is something else than a batch's output.
    """
    if not path.exists():
        return set()
    found = set()
    try:
        with path.open("r+b") as file:
            whole = 0
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    file.truncate(whole)
                    break
                whole += len(raw)
                found.add(_answered(raw, f"{path}, line {number}"))
    except OSError as error:
        raise StartError(f"{path}: {os.strerror(error.errno or 0)}") from error
    return found


class _Answer(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw


def _answered(raw: bytes, place: str) -> str:
    try:
        return msgspec.json.decode(raw, type=_Answer).custom_id
    except msgspec.DecodeError as error:
        raise StartError(f"{place}: not an answer of a batch ({error}); write to another file") from error


def answer_line(custom_id: str, status: int, body: bytes) -> bytes:
    """One line of the output file. `body` is a JSON object."""
    digest = hashlib.blake2b(custom_id.encode(), digest_size=12).hexdigest()
    response = {"status_code": status, "request_id": f"req_{digest}", "body": msgspec.Raw(body)}
    fields = {"id": f"batch_req_{digest}", "custom_id": custom_id, "response": response, "error": None}
    return msgspec.json.encode(fields) + b"\n"
