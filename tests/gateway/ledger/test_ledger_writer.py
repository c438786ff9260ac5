"""The thread that writes lines, with disks that fail."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from baton_gateway.ledger.ledger_writer import LedgerWriter
from baton_gateway.ledger.line_files import append_left, claim_place
from baton_gateway.ledger.open_table import OpenTable
from baton_gateway.ledger.request_ledger import Closing, LedgerLines, Opening, RequestLedger, open_ledger
from baton_gateway.reporting.outcome import LedgerResult
from baton_wire.ledger_line import LineEvent, decode_line

OPENING = Opening("req-1", "acme", "tiny", "chat", "Standard", 7)
CLOSING = Closing("finished", None, 7, None, 3, 3)
SLOTS = 4


class FlakyDisk:
    """A disk that fails until it is repaired, and that writes short."""

    def __init__(self, *, fails: bool = False) -> None:
        self.works = threading.Event()
        if not fails:
            self.works.set()
        self.content = b""
        self.tried = threading.Semaphore(0)

    def write(self, content: bytes, now_s: float) -> None:
        if not self.works.is_set():
            self.tried.release()
            raise OSError(28, "No space left on device", "/ledger/gw-0.jsonl")
        self.content += content

    def rotate_if_due(self, now_s: float) -> None:
        raise OSError(13, "Permission denied", "/ledger")

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def started(disk: FlakyDisk, *, is_required: bool = False) -> tuple[RequestLedger, list[tuple[LedgerResult, int]]]:
    counted: list[tuple[LedgerResult, int]] = []
    table = OpenTable.in_memory(SLOTS)
    writer = LedgerWriter(table, disk, lambda n: counted.append((LedgerResult.WRITTEN, n)), retry_s=0.001)
    ledger = RequestLedger(table, writer, is_required=is_required, count=lambda result, n: counted.append((result, n)))
    ledger.start()
    return ledger, counted


def until_free(ledger: RequestLedger) -> None:
    for _ in range(20_000):
        if not ledger.num_held:
            return
        time.sleep(0.001)
    raise TimeoutError


def serve(ledger: RequestLedger) -> bool:
    entry = ledger.open(OPENING)
    if entry is not None:
        entry.count(3)
        entry.close(CLOSING)
    return entry is not None


def test_every_request_has_an_opening_and_a_closing_line() -> None:
    disk = FlakyDisk()
    ledger, counted = started(disk)
    for _ in range(3 * SLOTS):
        until_free(ledger)
        assert serve(ledger)
    assert ledger.stop()
    events = [decode_line(line).event for line in disk.content.splitlines()]
    assert events.count(LineEvent.OPENED) == events.count(LineEvent.CLOSED) == 3 * SLOTS
    assert sum(n for result, n in counted if result is LedgerResult.WRITTEN) == 3 * SLOTS


def test_requests_are_served_unrecorded_while_the_disk_is_full_and_nothing_that_was_recorded_is_lost() -> None:
    disk = FlakyDisk(fails=True)
    ledger, counted = started(disk)
    assert [serve(ledger) for _ in range(SLOTS + 2)] == [True] * SLOTS + [False] * 2
    assert counted == [(LedgerResult.UNRECORDED, 1)] * 2
    disk.tried.acquire()
    assert ledger.writer.problem == "/ledger/gw-0.jsonl: No space left on device"
    disk.works.set()
    until_free(ledger)
    assert serve(ledger)
    assert ledger.stop()
    closed = [line for line in map(decode_line, disk.content.splitlines()) if line.event is LineEvent.CLOSED]
    assert len({line.id for line in closed}) == len(closed) == SLOTS + 1


def test_a_required_ledger_refuses_what_it_has_no_room_for() -> None:
    disk = FlakyDisk(fails=True)
    ledger, counted = started(disk, is_required=True)
    assert [serve(ledger) for _ in range(SLOTS + 1)] == [True] * SLOTS + [False]
    assert counted == [(LedgerResult.REFUSED, 1)]
    ledger.stop()


def test_lines_of_a_stream_are_whole_and_what_a_killed_process_left_comes_first(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    descriptor, path = claim_place(tmp_path, "gw", append_left)
    killed = RequestLedger(OpenTable(descriptor, path, SLOTS), LedgerWriter(OpenTable.in_memory(1), FlakyDisk()))
    entry = killed.open(OPENING)
    assert entry is not None
    entry.count(2)
    killed.table._words.release()
    killed.table._memory.close()
    os.close(descriptor)
    ledger = open_ledger(tmp_path, "gw", LedgerLines.STDOUT, is_required=True, stream=writing)
    ledger.start()
    serve(ledger)
    assert ledger.stop()
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        lines = [decode_line(content) for content in stream]
    assert [(line.event.value, line.output_tokens, line.interrupted) for line in lines] == [
        ("closed", 2, True),
        ("opened", None, False),
        ("closed", 3, False),
    ]
    assert not list(tmp_path.iterdir())


def test_a_process_ends_although_its_disk_is_full(tmp_path: Path) -> None:
    ledger, _ = started(FlakyDisk(fails=True))
    serve(ledger)
    ledger.stop()
    assert ledger.num_held == 1, "the slot is left to the next process"
