"""The lines of a batch, in OpenAI's format: one JSON object each, requests in, answers out.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    {"id": "…", "custom_id": "a", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}

An invalid line does not end a batch: its answer says what is wrong with it, by its line number. The answer has the
line's `custom_id`, unless that cannot be read or belongs to another line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from baton_gateway.batches.lenient_id import lenient_id
from baton_gateway.errors import INVALID, Problem
from baton_gateway.errors import RefusedError as RefusedRequestError
from baton_gateway.openai_api.json_body import BYTE_ORDER_MARK, count_json, parse_object
from baton_gateway.openai_api.response_encoding import error_body
from baton_gateway.workers.request_limits import body_limits

EMBEDDINGS: Final = "/v1/embeddings"
URLS: Final = ("/v1/chat/completions", "/v1/completions", EMBEDDINGS)
FIELDS: Final = ("custom_id", "method", "url", "body")
MAX_ID_CHARS: Final = 512
MAX_SHOWN_CHARS: Final = 64
MAX_LINE_BYTES: Final = 8 << 20
"""Same limit as for a body of the HTTP API."""
ANSWER_PREFIX: Final = b'{"id":"batch_req_'
"""How every answer begins."""
MAX_VALUES: Final = body_limits(None, None).max_values


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of the input file."""

    custom_id: str
    url: str
    body: dict[str, Any]
    size: int = field(default=0, compare=False)
    """Bytes of the line."""
    number: int = field(default=0, compare=False)
    """Line number, from 1."""

    @property
    def id(self) -> str:
        """Id of the answer, derived from `custom_id`."""
        return _answer_id(b"", self.custom_id.encode())


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line of the input file."""

    number: int
    """Line number, from 1."""
    custom_id: str | None
    message: str
    id: str
    """Id of the answer, derived from number and bytes: a corrected line has another one."""
    size: int = field(default=0, compare=False)
    """Bytes of the line in memory: none."""
    code: str = field(default="invalid_line", compare=False)

    def answer(self) -> bytes:
        """The line for the output file."""
        problem = Problem(400, INVALID, f"line {self.number}: {self.message}", None, "invalid_line")
        error = {"code": "invalid_line", "message": problem.message, "line": self.number}
        return _answer(self.id, self.custom_id, 400, error_body(problem), error)


def read_lines(path: Path) -> Iterator[BatchLine | BadLine]:
    """The lines in order; blank ones are skipped. Raises OSError."""
    seen: dict[bytes, int] = {}
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), start=1):
            if raw.strip():
                yield _own(_parse(raw, number), raw, number, seen)


def read_checked_lines(path: Path) -> Iterator[BatchLine]:
    """Yield the requests of a file in which no line is invalid and no id occurs twice. Raises OSError."""
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), start=1):
            if raw.strip() and isinstance(line := _parse(raw, number), BatchLine):
                yield line


def _own(line: BatchLine | BadLine, raw: bytes, number: int, seen: dict[bytes, int]) -> BatchLine | BadLine:
    """The line if its id is its own; two answers must not have the same id. `seen`: line numbers by the digest of the
    id.
    """
    if line.custom_id is None:
        return line
    digest = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
    if isinstance(line, BadLine):
        return replace(line, custom_id=None) if digest in seen else line
    first = seen.setdefault(digest, number)
    if first == number:
        return line
    bad = _bad(raw, number, f"custom_id: {line.custom_id!r} occurs twice, first in line {first}", None)
    return replace(bad, code="duplicate_custom_id")


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines, cut off one byte beyond the limit."""
    while raw := file.readline(MAX_LINE_BYTES + 1):
        rest = raw
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        yield raw.removeprefix(BYTE_ORDER_MARK)


def _parse(raw: bytes, number: int) -> BatchLine | BadLine:
    if len(raw) > MAX_LINE_BYTES:
        message = f"longer than the {MAX_LINE_BYTES} bytes that a request may have"
        return _bad(raw, number, message, lenient_id(raw, MAX_ID_CHARS))
    try:
        fields = parse_object(raw, count_json(raw, MAX_VALUES))
    except RefusedRequestError as error:
        return _bad(raw, number, error.problem.message, lenient_id(raw, MAX_ID_CHARS))
    custom_id, url, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        message = f"custom_id: must be a text of 1 to {MAX_ID_CHARS} characters, not {_shown(custom_id)}"
        return _bad(raw, number, message, None)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        message = f"{unknown[0][:64]}: unknown field; allowed: {', '.join(FIELDS)}"
        return _bad(raw, number, message, custom_id)
    if fields.get("method") != "POST":
        return _bad(raw, number, "method: must be POST", custom_id)
    if not isinstance(url, str) or url not in URLS:
        return _bad(raw, number, f"url: must be one of {', '.join(URLS)}", custom_id)
    if not isinstance(body, dict):
        return _bad(raw, number, "body: must be an object", custom_id)
    return BatchLine(custom_id, url, body, len(raw), number)


def _shown(value: object) -> str:
    """The beginning of a value as JSON."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _bad(raw: bytes, number: int, message: str, custom_id: str | None) -> BadLine:
    shown = message.encode(errors="replace").decode()
    return BadLine(number, custom_id, shown, _answer_id(b"line", number.to_bytes(8, "big") + raw))


def _answer_id(kind: bytes, data: bytes) -> str:
    return f"batch_req_{hashlib.blake2b(data, digest_size=12, person=kind).hexdigest()}"


def answer_line(custom_id: str, status: int, body: bytes, request_id: str = "") -> bytes:
    """The answer to a request. `body` is a JSON object; `request_id`: the id in logs and in the ledger, if there is
    one."""
    return _answer(_answer_id(b"", custom_id.encode()), custom_id, status, body, None, request_id)


def unanswered_line(custom_id: str, code: str, message: str) -> bytes:
    """The line about a request that was not answered."""
    fields = {
        "id": _answer_id(b"", custom_id.encode()),
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return msgspec.json.encode(fields) + b"\n"


def _answer(
    id_: str,
    custom_id: str | None,
    status: int,
    body: bytes,
    error: dict[str, object] | None,
    request_id: str = "",
) -> bytes:
    request_id = request_id or id_.replace("batch_", "", 1)
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    fields = {"id": id_, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(fields) + b"\n"


def refusal_text(line: bytes) -> str:
    """The request of an answer that refuses it, and why, in words.

    >>> refusal_text(answer_line("a", 400, b'{"error": {"message": "no such field"}}'))
    'a: no such field'
    """
    answer = msgspec.json.decode(line)
    body, error = (answer.get("response") or {}).get("body") or {}, answer.get("error") or {}
    message = (body.get("error") or {}).get("message") or error.get("message") or "refused"
    return f"{answer.get('custom_id') or 'a line'}: {message}"


class _Response(msgspec.Struct):
    request_id: str
    body: msgspec.Raw


class _Answer(msgspec.Struct):
    id: str
    response: _Response


def answered_id(raw: bytes) -> str | None:
    """The id of an answer that `answer_line` or `BadLine.answer` wrote; None: any other line."""
    if not raw.startswith(ANSWER_PREFIX):
        return None
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answer.id if answer.response.request_id == answer.id.replace("batch_", "", 1) else None
