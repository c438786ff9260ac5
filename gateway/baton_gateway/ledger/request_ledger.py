"""The ledger of one gateway process: opens an entry for each request, counts in it, closes it.

What is counted before it is delivered is in the table of open requests, so a kill leaves at most the tokens of one
write to a client counted and not delivered. Called in the event loop alone; no call waits.
"""

from __future__ import annotations

import enum
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_gateway.ledger.ledger_writer import LedgerWriter, LineSink, StreamSink
from baton_gateway.ledger.line_files import LineFile, append_left, claim_place, closing_lines, place_stem, recover_left
from baton_gateway.ledger.open_table import LeftSlot, OpenTable
from baton_gateway.reporting.outcome import LedgerResult
from baton_wire.ledger_line import LINES_SUFFIX, LedgerLine, LineEvent, encode_line, time_text
from baton_wire.messages.values import Role

_log = logging.getLogger("baton.gateway.ledger")
STOP_S = 10.0
"""For the last lines, when the process stops."""


class LedgerLines(enum.StrEnum):
    """Where lines go."""

    FILES = "files"
    STDOUT = "stdout"


@dataclass(frozen=True, slots=True)
class Opening:
    """A request whose work is about to be sent to a worker."""

    request: str
    tenant: str
    model: str
    task: str
    priority: str
    input_tokens: int


@dataclass(frozen=True, slots=True)
class Closing:
    """How a request ended. Counts that are None are not known."""

    status: str
    code: str | None
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    """Tokens that were handed to the client's connection."""
    generated_tokens: int
    accelerator_seconds: dict[str, float] | None = None
    """By pool."""


class LedgerEntry:
    """The entry of one request, until `close`."""

    __slots__ = ("_ledger", "_opened", "_slot")

    def __init__(self, ledger: RequestLedger, slot: int, opened: LedgerLine) -> None:
        self._ledger, self._slot, self._opened = ledger, slot, opened

    def count(self, tokens: int) -> None:
        """Set the number of output tokens that will have been delivered in a moment."""
        self._ledger.table.count(self._slot, tokens)

    def note_cached(self, tokens: int) -> None:
        """Note how many input tokens were cached."""
        self._ledger.table.note_cached(self._slot, tokens)

    def note_devices(self, seconds: Mapping[Role, float]) -> None:
        """Note the time that devices spent on it so far, by pool."""
        self._ledger.table.note_devices(self._slot, seconds.get(Role.PREFILL), seconds.get(Role.DECODE))

    def close(self, closing: Closing) -> None:
        """Close the entry. Called once, when the client has the whole answer or is gone."""
        self._ledger.close_slot(self._slot, self._opened, closing)


class RequestLedger:
    """The entries of this process."""

    def __init__(
        self,
        table: OpenTable,
        writer: LedgerWriter,
        *,
        is_required: bool = False,
        count: Callable[[LedgerResult, int], None] = lambda result, requests: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`is_required`: requests that cannot be recorded are to be refused."""
        self.table, self.writer, self.is_required = table, writer, is_required
        self._count, self._wall = count, wall
        self._run = secrets.token_hex(8)
        self._number = 0

    @property
    def num_held(self) -> int:
        """Requests that are open or not written yet."""
        return self.table.num_slots - self.table.num_free

    def start(self) -> None:
        """Begin to write lines."""
        self.writer.start()

    def open(self, opening: Opening) -> LedgerEntry | None:
        """Open the entry of a request; None: there is no room, so the request is refused or goes unrecorded."""
        self._number += 1
        line = LedgerLine(
            ledger=1,
            event=LineEvent.OPENED,
            id=f"{self._run}-{self._number}",
            request=opening.request,
            opened_at=time_text(self._wall()),
            tenant=opening.tenant,
            model=opening.model,
            task=opening.task,
            priority=opening.priority,
            input_tokens=opening.input_tokens,
        )
        encoded = encode_line(line)
        slot = self.table.take(encoded)
        if slot is None:
            self._count(LedgerResult.REFUSED if self.is_required else LedgerResult.UNRECORDED, 1)
            return None
        self.writer.put(encoded, None)
        return LedgerEntry(self, slot, line)

    def close_slot(self, slot: int, opened: LedgerLine, closing: Closing) -> None:
        """Close the entry of a slot."""
        generated = closing.generated_tokens
        line = msgspec.structs.replace(
            opened,
            event=LineEvent.CLOSED,
            closed_at=time_text(self._wall()),
            input_tokens=closing.input_tokens,
            cached_tokens=closing.cached_tokens,
            output_tokens=closing.output_tokens,
            generated_tokens=None if generated == closing.output_tokens else generated,
            accelerator_seconds=closing.accelerator_seconds,
            status=closing.status,
            code=closing.code,
        )
        encoded = encode_line(line)
        self.table.finish(slot, encoded)
        self.writer.put(encoded, slot)

    def stop(self) -> bool:
        """Write what is left; returns whether everything is written. Blocks for at most STOP_S."""
        is_written = self.writer.stop(STOP_S)
        if is_written:
            self.table.close()
        return is_written


def open_ledger(
    folder: Path,
    name: str,
    lines: LedgerLines,
    *,
    is_required: bool,
    count: Callable[[LedgerResult, int], None] = lambda result, requests: None,
    stream: int = 1,
) -> RequestLedger:
    """Open the ledger of a process in a folder, after what killed processes left was recovered. Where the folder cannot
    be used, the table is in memory until the process ends, and lines wait there. Raises OSError if it is required.

    `stream`: the descriptor that is the standard output."""
    standard_output = StreamSink(stream)

    def append_to_stream(path: Path, left: list[LeftSlot]) -> None:
        standard_output.write(b"".join(closing_lines(left, set())), 0.0)

    append = append_to_stream if lines is LedgerLines.STDOUT else append_left
    try:
        descriptor, path = claim_place(folder, name, append)
        table = OpenTable(descriptor, path)
    except OSError as error:
        if is_required:
            raise
        _log.error("the ledger is in memory alone: %s: %s", error.filename or folder, error.strerror or error)
        table, path = OpenTable.in_memory(), folder / f"{place_stem(name)}-p{os.getpid()}{LINES_SUFFIX}"
    sink: LineSink = standard_output if lines is LedgerLines.STDOUT else LineFile(path.with_suffix(LINES_SUFFIX))
    writer = LedgerWriter(
        table,
        sink,
        lambda written: count(LedgerResult.WRITTEN, written),
        lambda now_s: recover_left(folder, name, now_s, append),
    )
    return RequestLedger(table, writer, is_required=is_required, count=count)
