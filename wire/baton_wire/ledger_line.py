"""The lines of the ledger: what a gateway writes of each request, and `baton usage` reads. One JSON object a line.

A request has an opening line, written when its work is first sent to a worker, and a closing line. Lines with the same
`id` are about one request, which counts once: by its first closing line.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_LINE_BYTES = 1_000
"""Including the line feed. Names are cut so that each line fits."""
MAX_MODEL_BYTES = 253
LINES_SUFFIX, TABLE_SUFFIX = ".jsonl", ".open"
"""The ends of the names of files of lines, and of tables of open requests."""
INTERRUPTED = "interrupted"
"""The status of a request whose gateway was killed."""

Text = Annotated[str, Meta(max_length=512)]
Tokens = Annotated[int, Meta(ge=0, le=1 << 53)]


class LineEvent(enum.StrEnum):
    """The kind of a line."""

    OPENED = "opened"
    CLOSED = "closed"


class LedgerLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line. What is not known is absent, never zero. A newer release may add fields."""

    ledger: Literal[1]
    event: LineEvent
    id: Annotated[str, Meta(min_length=3, max_length=64, pattern=r"^[0-9a-f]+-[0-9]+$")]
    """The run of the gateway process, and the number of the request in it, which counts up."""
    request: Text
    """The id that the client knows: `X-Request-Id`."""
    opened_at: Text
    """RFC 3339, UTC."""
    closed_at: Text | None = None
    tenant: Text
    """Name of the LLMTenant or of the tenant in the key file; `default` where clients need no key."""
    model: Text
    """Served name."""
    task: Text
    """`chat`, `text_completion`, `embeddings`, `rerank`, `score` or `classify`."""
    priority: Text
    """The class that the request got."""
    input_tokens: Tokens
    cached_tokens: Tokens | None = None
    """Input tokens whose KV was cached."""
    output_tokens: Tokens | None = None
    """Tokens that were handed to the client's connection; absent in an opening line."""
    generated_tokens: Tokens | None = None
    """Tokens that came from workers, where that differs from `output_tokens`."""
    accelerator_seconds: dict[str, float] | None = None
    """The request's share of the time of workers' steps, by pool. A pool that reported none is absent."""
    status: Text | None = None
    """`finished`, `failed`, `cancelled` or `interrupted`; absent in an opening line."""
    code: Text | None = None
    """The error code of a failed request."""
    interrupted: bool = False
    """True: the gateway was killed, and `output_tokens` is the last count that it had written."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LedgerLine).decode


def encode_line(line: LedgerLine) -> bytes:
    """Encode a line with its line feed, at most MAX_LINE_BYTES long."""
    encoded = _encode(line)
    if len(encoded) >= MAX_LINE_BYTES:
        encoded = _encode(
            msgspec.structs.replace(
                line,
                request=_cut(line.request, 128),
                model=_cut(line.model, 2 * MAX_MODEL_BYTES // 3),
                tenant=_cut(line.tenant, 128),
                code=None,
            )
        )
    return encoded + b"\n"


def decode_line(content: bytes) -> LedgerLine:
    """Read a line. Raises ValueError."""
    try:
        return _decode(content)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def time_text(seconds: float) -> str:
    """A time of the wall clock as lines have it. A clock that was set beyond the calendar shows its last second.

    >>> time_text(1796000000.25)
    '2026-11-30T00:53:20.250Z'
    """
    bounded = min(max(0.0, seconds), 253_402_300_799.0)
    return datetime.fromtimestamp(bounded, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(text: str, most: int) -> str:
    """The beginning of a text, in at most this many bytes of JSON."""
    while len(_encode(text)) > most + 2:
        text = text[: max(0, len(text) - 1 - (len(_encode(text)) - most) // 12)]
    return text
