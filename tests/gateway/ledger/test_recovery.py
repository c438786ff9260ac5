"""Whatever instant a process is killed at, the next one has each of its requests in the ledger once."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from baton_gateway.ledger import line_files
from baton_gateway.ledger.ledger_writer import LedgerWriter
from baton_gateway.ledger.line_files import LineFile, Rotation, append_left, claim_place, recover_left
from baton_gateway.ledger.open_table import OpenTable
from baton_gateway.ledger.request_ledger import Closing, LedgerLines, Opening, RequestLedger, open_ledger
from baton_wire.ledger_line import LedgerLine, LineEvent, decode_line
from baton_wire.messages.values import Role

OPENING = Opening("req-1", "acme", "tiny", "chat", "Standard", 7)
NOON_S = 1_796_040_000.0
DAY_S = 86_400.0


def closing(output: int, status: str = "finished", code: str | None = None) -> Closing:
    return Closing(status, code, 7, 0, output, output)


class Steps:
    """A ledger whose writer runs in steps of the test: each step of `write` is an instant of a kill."""

    def __init__(self, folder: Path, slots: int = 8) -> None:
        descriptor, path = claim_place(folder, "gw", append_left)
        self.descriptor = descriptor
        self.table = OpenTable(descriptor, path, slots)
        self.file = LineFile(path.with_suffix(".jsonl"))
        self.writer = LedgerWriter(self.table, self.file)
        self.ledger = RequestLedger(self.table, self.writer, wall=lambda: NOON_S)

    def write(self, *, releases: bool = True, most: int = 1_000) -> None:
        lines: queue.SimpleQueue[tuple[bytes, int | None] | None] = self.writer._lines
        for _ in range(most):
            try:
                item = lines.get_nowait()
            except queue.Empty:
                return
            assert item is not None
            self.file.write(item[0], NOON_S)
            if releases and item[1] is not None:
                self.table.release(item[1])

    def kill(self) -> None:
        """End it as a kill does: with the table as it is, and its lock free."""
        self.table._words.release()
        self.table._memory.close()
        os.close(self.descriptor)
        self.file.close()


def lines(folder: Path) -> list[LedgerLine]:
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl")))
    found = []
    for line in content.splitlines():
        try:
            found.append(decode_line(line))
        except ValueError:
            continue
    return found


def closed(folder: Path) -> list[tuple[str, int | None, str | None, bool]]:
    return [
        (line.id.partition("-")[2], line.output_tokens, line.status, line.interrupted)
        for line in lines(folder)
        if line.event is LineEvent.CLOSED
    ]


def entry(steps: Steps, tokens: int = 0) -> Callable[[Closing], None]:
    opened = steps.ledger.open(OPENING)
    assert opened is not None
    opened.count(tokens)
    return opened.close


def restart(folder: Path) -> None:
    Steps(folder).kill()


def test_a_request_that_was_open_is_closed_with_its_last_count(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    entry(steps, 5)
    steps.kill()  # before any line was written
    restart(tmp_path)
    [line] = lines(tmp_path)
    assert (line.output_tokens, line.status, line.interrupted, line.input_tokens) == (5, "interrupted", True, 7)
    assert line.closed_at is None, "when it ended is not known"


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ({}, None),
        ({Role.PREFILL: 0.0}, {"prefill": 0.0}),
        ({Role.DECODE: 2.5}, {"decode": 2.5}),
        ({Role.PREFILL: 0.12345, Role.DECODE: 9.0}, {"prefill": 0.12345, "decode": 9.0}),
        ({Role.DECODE: 1e9}, {"decode": 42949.67294}),
    ],
)
def test_an_interrupted_request_has_the_time_of_devices_that_was_reported(
    tmp_path: Path, noted: dict[Role, float], expected: dict[str, float] | None
) -> None:
    steps = Steps(tmp_path)
    for seconds in ({Role.PREFILL: 77.0, Role.DECODE: 77.0}, noted):
        opened = steps.ledger.open(OPENING)
        assert opened is not None
        opened.note_devices(seconds)
        if seconds is not noted:
            opened.close(closing(1))
            steps.write()  # the next request may get the same slot
    steps.kill()
    restart(tmp_path)
    left = [line for line in lines(tmp_path) if line.interrupted]
    assert [line.accelerator_seconds for line in left] == [expected]


def test_a_closed_request_whose_line_was_not_written_keeps_its_end(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    entry(steps, 5)(closing(4, "failed", "workers_failed"))
    steps.kill()
    restart(tmp_path)
    assert closed(tmp_path) == [("1", 4, "failed", False)]


def test_a_line_that_was_written_is_not_written_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    entry(steps)(closing(4))
    entry(steps, 2)
    steps.write(releases=False)
    steps.kill()  # between the write and the release of its slot
    restart(tmp_path)
    restart(tmp_path)
    assert closed(tmp_path) == [("1", 4, "finished", False), ("2", 2, "interrupted", True)]


def test_a_torn_line_is_written_again_and_its_beginning_is_no_line(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    entry(steps)(closing(4))
    steps.write(releases=False)
    path = tmp_path / "gw-0.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    steps.kill()
    restart(tmp_path)
    assert closed(tmp_path) == [("1", 4, "finished", False)]
    assert path.read_bytes().endswith(b"\n")


def test_a_recovery_that_is_killed_itself_is_made_good_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(tmp_path)
    for tokens in (1, 2, 3):
        entry(steps, tokens)
    steps.kill()

    class KilledError(BaseException):
        pass

    def killed(descriptor: int) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", killed)
        with pytest.raises(KilledError):
            restart(tmp_path)
    restart(tmp_path)
    assert [output for _, output, _, _ in closed(tmp_path)] == [1, 2, 3]


def test_a_full_disk_leaves_the_table_for_later_and_the_process_takes_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(tmp_path)
    entry(steps, 5)
    steps.kill()

    def full(path: Path) -> int:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(line_files, "open_lines", full)
        later = Steps(tmp_path)
    assert later.table.path == tmp_path / "gw-1.open"
    assert closed(tmp_path) == []
    assert recover_left(tmp_path, "gw", 0.0, append_left) == 1
    assert closed(tmp_path) == [("1", 5, "interrupted", True)]
    later.kill()


def test_a_table_of_another_name_is_recovered_once_it_is_abandoned(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    entry(steps, 5)
    table = tmp_path / "gw-0.open"
    os.utime(table, (NOON_S, NOON_S))
    assert recover_left(tmp_path, "other", NOON_S + 1_000, append_left) == 0, "its process lives"
    steps.kill()
    os.utime(table, (NOON_S, NOON_S))
    assert recover_left(tmp_path, "other", NOON_S + 60, append_left) == 0, "it may live where locks do not reach"
    assert recover_left(tmp_path, "other", NOON_S + 1_000, append_left) == 1
    assert closed(tmp_path) == [("1", 5, "interrupted", True)]


def test_files_are_rotated_by_size_and_by_day_and_never_overwritten(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "gw-0.jsonl", Rotation(most_bytes=100))
    for number in range(3):
        file.write(b"%d" % number * 99 + b"\n", NOON_S)
        file.rotate_if_due(NOON_S)  # the clock stands still
    file.write(b"small\n", NOON_S)
    file.rotate_if_due(NOON_S)
    os.utime(tmp_path / "gw-0.jsonl", (NOON_S, NOON_S))
    for now_s in (NOON_S + DAY_S, NOON_S - DAY_S):  # an hour forwards or back is a day, perhaps
        file.rotate_if_due(now_s)
        file.write(b"other day\n", now_s)
    file.close()
    content = sorted(path.read_bytes()[:5] for path in tmp_path.iterdir())
    assert content == [b"00000", b"11111", b"22222", b"other", b"other", b"small"]


def test_a_file_that_another_program_moves_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "gw-0.jsonl")
    file.write(b"first\n", NOON_S)
    (tmp_path / "gw-0.jsonl").rename(tmp_path / "moved.jsonl")
    file.rotate_if_due(NOON_S)
    file.write(b"second\n", NOON_S)
    file.close()
    assert (tmp_path / "moved.jsonl").read_bytes() + (tmp_path / "gw-0.jsonl").read_bytes() == b"first\nsecond\n"


def test_a_folder_that_cannot_be_used_stops_a_required_ledger_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("no folder")
    with pytest.raises(OSError):
        open_ledger(folder, "gw", LedgerLines.FILES, is_required=True)
    ledger = open_ledger(folder, "gw", LedgerLines.FILES, is_required=False)
    opened = ledger.open(OPENING)
    assert opened is not None
    opened.close(closing(1))
    assert ledger.num_held == 1
