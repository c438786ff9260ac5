"""Reads an uploaded file part by part: multipart/form-data, streamed to the disk, never held as a whole.

The size of the file and the length of each line are checked as the bytes come.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import BodyPartReader, HttpVersion11, web

from baton_gateway.batches.batch_record import KEPT_S
from baton_gateway.batches.file_store import Upload
from baton_gateway.batches.lines import MAX_LINE_BYTES
from baton_gateway.batches.refusals import file_too_large, line_too_long
from baton_gateway.errors import RefusedError, invalid
from baton_gateway.http_api.request_body import BODY_IDLE_S

UPLOAD_S: Final = 3_600.0
READ_BYTES: Final = 256 << 10
WRITE_BYTES: Final = 1 << 20
MAX_FIELD_BYTES: Final = 1_024
MAX_PARTS: Final = 16
MAX_NAME_CHARS: Final = 255
PURPOSES: Final = ("batch",)
LEAST_KEPT_S, MOST_KEPT_S = 3_600, KEPT_S
FORM_BYTES: Final = 64 << 10
"""The most that the form takes around its file."""
WriteBytes = Callable[[bytes], Awaitable[None]]
"""Writes bytes of the file to the disk."""
_SECONDS = re.compile(r"[0-9]{1,9}")


@dataclass(slots=True)
class UploadForm:
    """The fields of the form, as far as they came."""

    texts: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    """The name of the file; None: no file came."""

    def purpose(self) -> str:
        """Raises RefusedError."""
        purpose = self.texts.pop("purpose", None)
        if purpose is None:
            raise invalid("purpose", "'purpose' is required.", "missing_required_parameter")
        if purpose not in PURPOSES:
            raise invalid("purpose", f"'purpose' must be {' or '.join(PURPOSES)}.")
        return purpose

    def kept_s(self) -> int:
        """How long the file is kept. Raises RefusedError."""
        anchor, seconds = self.texts.pop("expires_after[anchor]", None), self.texts.pop("expires_after[seconds]", None)
        if anchor is None and seconds is None:
            return KEPT_S
        if anchor != "created_at":
            raise invalid("expires_after.anchor", "'expires_after.anchor' must be created_at.")
        if seconds is None or _SECONDS.fullmatch(seconds) is None or not LEAST_KEPT_S <= int(seconds) <= MOST_KEPT_S:
            allowed = f"between {LEAST_KEPT_S} and {MOST_KEPT_S}"
            raise invalid("expires_after.seconds", f"'expires_after.seconds' must be {allowed}.", "out_of_range")
        return int(seconds)

    def end(self) -> str:
        """Return the file's name. Raises RefusedError if it is missing, or an unknown field came."""
        if self.texts:
            name = next(iter(self.texts))[:64]
            raise invalid(name, f"Unknown field '{name}'.", "unknown_parameter")
        if self.name is None:
            raise invalid("file", "'file' is required.", "missing_required_parameter")
        return self.name


class LineLengths:
    """The length of the line that is being read."""

    def __init__(self, most_bytes: int = MAX_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._line, self._length = 1, 0

    def add(self, content: bytes) -> None:
        """Count the next bytes. Raises RefusedError if a line is too long."""
        begin = 0
        while (end := content.find(b"\n", begin)) >= 0:
            self._check(end - begin)
            self._line, self._length, begin = self._line + 1, 0, end + 1
        self._check(len(content) - begin)
        self._length += len(content) - begin

    def _check(self, more: int) -> None:
        if self._length + more > self._most_bytes:
            raise RefusedError(line_too_long(self._line, self._most_bytes))


async def read_upload(
    request: web.BaseRequest, upload: Upload, write: WriteBytes, allow: Callable[[int], bool]
) -> UploadForm:
    """Read the form, and write its file to the upload. `allow`: whether bytes may be held in memory. Raises
    RefusedError, OSError from the disk."""
    if request.content_type != "multipart/form-data":
        raise invalid(None, "The body must be multipart/form-data.", "unsupported_media_type", status=415)
    if (request.content_length or 0) > upload.most_bytes + FORM_BYTES:
        raise RefusedError(file_too_large(upload.most_bytes))
    is_waiting = request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11
    if is_waiting and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not allow(WRITE_BYTES + READ_BYTES):
        raise invalid(None, "This gateway has no memory for an upload at present.", "out_of_memory", status=503)
    form = UploadForm()
    try:
        async with asyncio.timeout(UPLOAD_S):
            await _read_parts(request, upload, write, form)
    except TimeoutError as error:
        raise invalid(None, "The body came too slowly.", "request_timeout", status=408) from error
    except (ValueError, AssertionError, LookupError) as error:  # aiohttp's, about the form
        raise invalid(None, "The body is no valid multipart/form-data.", "bad_request") from error
    return form


async def _read_parts(request: web.BaseRequest, upload: Upload, write: WriteBytes, form: UploadForm) -> None:
    reader = await request.multipart()
    for _ in range(MAX_PARTS):
        async with asyncio.timeout(BODY_IDLE_S):
            part = await reader.next()
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise invalid(None, "A part of the form is multipart itself.", "bad_request")
        name = (part.name or "")[:64]
        if part.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise invalid(name, "Compressed parts are not accepted.", "unsupported_media_type", status=415)
        if name == "file":
            if form.name is not None:
                raise invalid("file", "'file' is given twice.")
            form.name = _file_name(part.filename)
            await _read_file(part, upload, write)
        else:
            if name in form.texts:
                raise invalid(name, f"'{name}' is given twice.")
            form.texts[name] = await _read_text(part, name)
    raise invalid(None, f"The form has more than {MAX_PARTS - 1} parts.", "bad_request")


def _file_name(sent: str | None) -> str:
    """The name as the client gave it, for its lists alone: it is never part of a path."""
    name = "".join(letter for letter in (sent or "") if letter.isprintable())
    return name.encode(errors="replace").decode()[:MAX_NAME_CHARS] or "upload.jsonl"


async def _read_text(part: BodyPartReader, name: str) -> str:
    content = b""
    while chunk := await _next(part):
        content += chunk
        if len(content) > MAX_FIELD_BYTES:
            raise invalid(name, f"'{name}' is longer than {MAX_FIELD_BYTES} bytes.", "too_long")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise invalid(name, f"'{name}' is no UTF-8.") from error


async def _read_file(part: BodyPartReader, upload: Upload, write: WriteBytes) -> None:
    lengths, pending, size = LineLengths(), bytearray(), 0
    while chunk := await _next(part):
        size += len(chunk)
        if size > upload.most_bytes:
            raise RefusedError(file_too_large(upload.most_bytes))
        lengths.add(chunk)
        pending += chunk
        if len(pending) >= WRITE_BYTES:
            await write(bytes(pending))
            pending.clear()
    await write(bytes(pending))


async def _next(part: BodyPartReader) -> bytes:
    """The next bytes of a part; empty at its end. Raises TimeoutError."""
    async with asyncio.timeout(BODY_IDLE_S):
        while not part.at_eof():
            if chunk := await part.read_chunk(READ_BYTES):
                return chunk
    return b""
