"""What a killed process leaves in its table of open requests, and who may take it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from baton_gateway.ledger.line_files import claim_place
from baton_gateway.ledger.open_table import EntryState, OpenTable, left_slots, lock_table


def opened(path: Path, slots: int = 8) -> OpenTable:
    descriptor = lock_table(path, creates=True)
    assert descriptor is not None
    return OpenTable(descriptor, path, slots)


def read_after_kill(path: Path) -> list[tuple[EntryState, bytes, bytes, int, int | None]]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        left = list(left_slots(descriptor))
    finally:
        os.close(descriptor)
    return [(slot.state, slot.opened, slot.closed, slot.output_tokens, slot.cached_tokens) for slot in left]


def test_counts_of_a_process_that_is_killed_are_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "gw-0.open"
    child = os.fork()
    if child == 0:
        table = opened(path)
        first, second, third = (table.take(line) for line in (b"first\n", b"second\n", b"third\n"))
        assert first is not None
        assert second is not None
        assert third is not None
        table.count(first, 2)
        table.count(first, 5)
        table.note_cached(second, 0)
        table.finish(second, b"closed\n")
        table.finish(third, b"gone\n")
        table.release(third)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert read_after_kill(path) == [
        (EntryState.OPEN, b"first\n", b"", 5, None),
        (EntryState.CLOSED, b"second\n", b"closed\n", 0, 0),
    ]


def test_a_slot_that_is_used_again_has_nothing_of_the_request_before(tmp_path: Path) -> None:
    table = opened(tmp_path / "gw-0.open", slots=1)
    slot = table.take(b"a longer line than the next one\n")
    assert slot is not None
    assert table.take(b"no room\n") is None
    table.count(slot, 9)
    table.note_cached(slot, 4)
    table.finish(slot, b"closed\n")
    table.release(slot)
    assert table.take(b"next\n") == slot
    assert read_after_kill(tmp_path / "gw-0.open") == [(EntryState.OPEN, b"next\n", b"closed\n", 0, None)]


def test_a_table_is_locked_while_its_process_lives_and_goes_when_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "gw-0.open"
    table = opened(path)
    assert lock_table(path) is None
    table.close()
    assert not path.exists()


def test_a_table_with_lines_that_were_not_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "gw-0.open"
    table = opened(path)
    table.take(b"open\n")
    table.close()
    assert [left[1] for left in read_after_kill(path)] == [b"open\n"]


def test_processes_of_one_name_have_places_of_their_own(tmp_path: Path) -> None:
    places = [claim_place(tmp_path, "gw/1", lambda path, left: None) for _ in range(3)]
    assert [path.name for _, path in places] == ["gw_1-0.open", "gw_1-1.open", "gw_1-2.open"]
    for descriptor, _ in places:
        os.close(descriptor)


def test_a_file_that_is_no_table_has_no_slots(tmp_path: Path) -> None:
    path = tmp_path / "gw-0.open"
    path.write_bytes(b"x" * 10_000)
    assert read_after_kill(path) == []
    path.write_bytes(b"")
    assert read_after_kill(path) == []
