"""`baton usage`: each request counts once, from whatever files, in memory that does not follow their size."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_local.__main__ import main
from baton_local.usage.line_reader import find_files, read_all
from baton_local.usage.number_set import NumberSet
from baton_local.usage.usage_sums import UsageFilter, UsageSums
from baton_wire.ledger_line import LedgerLine, LineEvent, decode_line, encode_line

EVERYTHING = UsageFilter()


def opened(number: int, tenant: str = "acme", day: str = "2026-11-29", run: str = "ab") -> LedgerLine:
    return LedgerLine(
        ledger=1, event=LineEvent.OPENED, id=f"{run}-{number}", request=f"req-{number}",
        opened_at=f"{day}T10:00:00.000Z", tenant=tenant, model="tiny", task="chat", priority="Standard", input_tokens=7,
    )  # fmt: skip


def closed(
    number: int,
    output: int = 3,
    tenant: str = "acme",
    day: str = "2026-11-29",
    status: str = "finished",
    cached: int | None = None,
    run: str = "ab",
) -> LedgerLine:
    line = opened(number, tenant, day, run)
    return LedgerLine(
        ledger=1, event=LineEvent.CLOSED, id=line.id, request=line.request, opened_at=line.opened_at, tenant=tenant,
        model="tiny", task="chat", priority="Standard", input_tokens=7, cached_tokens=cached, output_tokens=output,
        status=status, interrupted=status == "interrupted",
    )  # fmt: skip


def write(path: Path, *lines: LedgerLine) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(map(encode_line, lines))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def sums_of(*paths: Path, by: tuple[str, ...] = ("tenant",), takes: UsageFilter = EVERYTHING) -> UsageSums:
    sums = UsageSums(by, takes)
    read_all(find_files(paths), sums)
    return sums


@given(st.lists(st.integers(0, 60)))
def test_a_set_of_numbers_is_the_set_of_these_numbers(numbers: list[int]) -> None:
    known, plain = NumberSet(), set[int]()
    for number in numbers:
        assert known.add(number) == (number not in plain)
        plain.add(number)
    assert [number in known for number in range(62)] == [number in plain for number in range(62)]
    assert known.num_intervals == sum(number - 1 not in plain for number in plain)


def test_a_request_counts_once_in_whatever_order_its_lines_come(tmp_path: Path) -> None:
    lines = [line for number in range(40) for line in (opened(number), closed(number), closed(number))]
    random.Random(3).shuffle(lines)
    write(tmp_path / "a.jsonl", *lines[:60])
    write(tmp_path / "b.jsonl.gz", *lines[50:])
    sums = sums_of(tmp_path)
    usage = sums.total()
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (40, 280, 120, None)
    assert not sums.unclosed
    assert sums.duplicates >= 40


def test_a_rotated_file_and_its_compressed_copy_count_once(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".jsonl.gz"):
        write(tmp_path / f"gw-0.20261129T000000Z.00000{suffix}", opened(1), closed(1))
    write(tmp_path / "gw-0.jsonl", opened(2), closed(2), opened(3))
    sums = sums_of(tmp_path)
    assert sums.total().requests == 2
    assert sums.unclosed == {("ab", 3): 7}


def test_torn_lines_and_lines_of_other_programs_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "gw.log"
    whole = encode_line(closed(1, cached=2))
    later = whole.replace(b'{"ledger":1', b'{"ledger":2').replace(b"ab-1", b"ab-2")
    page = b"2026-11-29T10:00:00Z stdout F " + whole + b"INFO hello\n" + whole[:50] + b"\n" + later + b"x" * 200_000
    path.write_bytes(page)
    sums = sums_of(path)
    assert (sums.total().requests, sums.total().cached_tokens, sums.unread) == (1, 2, 2)


def test_memory_follows_open_requests_and_not_lines(tmp_path: Path) -> None:
    sums = UsageSums(("tenant",))
    for number in range(5_000):
        sums.add(opened(number))
        if number >= 8:
            sums.add(closed(number - 8))
    assert len(sums.unclosed) == 8
    assert sums._closed["ab"].num_intervals == 1


def test_filters_choose_days_tenants_and_models(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, closed(1, day="2026-10-31"), closed(2), closed(3, day="2026-12-01"), closed(4, tenant="other"))
    month = UsageFilter("2026-11-01", "2026-12-01", "acme", "tiny")
    assert sums_of(path, takes=month).total().requests == 1
    assert sums_of(path, takes=UsageFilter(model="none")).total().requests == 0


def test_a_damaged_archive_is_an_error_and_no_smaller_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl.gz"
    write(path, *(closed(number) for number in range(500)))
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["usage", str(path)]) == 1
    assert f"baton: {path}: cannot be read" in capsys.readouterr().err


def test_seconds_of_accelerators_are_added_up_by_pool_and_unknown_ones_are_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {1: None, 2: {"decode": 0.1}, 3: {"prefill": 0.25, "decode": 0.2}, 4: {"prefill": 0.0}}
    lines = [
        msgspec.structs.replace(closed(number, tenant="other" if number == 1 else "acme"), accelerator_seconds=seconds)
        for number, seconds in known.items()
    ]
    write(tmp_path / "a.jsonl", *lines)
    assert main(["usage", str(tmp_path), "--by", "tenant", "--format", "csv"]) == 0
    acme, other = csv.DictReader(capsys.readouterr().out.splitlines())
    columns = "prefill_accelerator_seconds", "decode_accelerator_seconds"
    assert [acme[name] for name in columns] == ["0.25", "0.3"]
    assert [other[name] for name in columns] == ["", ""], "what is not known is empty"
    total = sums_of(tmp_path).total()
    assert (total.prefill_accelerator_seconds, total.decode_accelerator_seconds) == (0.25, 0.3)


def test_the_command_prints_a_table_csv_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path / "a.jsonl", closed(1), closed(2, status="interrupted"), closed(3, tenant="other", cached=4), opened(9)
    )
    assert main(["usage", str(tmp_path), "--by", "month,tenant"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "MONTH", "TENANT", "REQUESTS", "FAILED", "CANCELLED", "INTERRUPTED", "INPUT", "TOKENS", "CACHED", "TOKENS",
        "OUTPUT", "TOKENS", "PREFILL", "ACC-S", "DECODE", "ACC-S",
    ]  # fmt: skip
    assert lines[1].split() == ["2026-11", "acme", "2", "0", "0", "1", "14", "-", "6", "-", "-"]
    assert lines[3].split() == ["total", "3", "0", "0", "1", "21", "4", "9", "-", "-"]
    assert "1 requests with 7 input tokens have no end" in lines[4]
    assert main(["usage", str(tmp_path), "--by", "tenant", "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert list(csv.reader(printed.out.splitlines()))[1] == ["acme", "2", "0", "0", "1", "14", "", "6", "", ""]
    assert "no end" in printed.err
    assert main(["usage", str(tmp_path), "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["total"]["requests"] == 3
    assert page["unclosed_requests"] == 1
    assert page["usage"][0] | {"day": "2026-11-29", "tenant": "acme", "cached_tokens": None} == page["usage"][0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/none"], "/none: no such file or folder"),
        (["--by", "colour"], "'colour' is not allowed"),
        (["--since", "tomorrow"], "'tomorrow' is not allowed"),
        (["--until", "2026-13"], "'2026-13' is not allowed"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["usage", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_the_longest_names_fit_into_a_line() -> None:
    line = closed(1, tenant="t" * 512, status="failed")
    line = LedgerLine(
        ledger=1, event=line.event, id=f"{'f' * 16}-{1 << 53}", request="r" * 512, opened_at=line.opened_at,
        closed_at=line.opened_at, tenant="\u00fc" * 512, model="\U0001f980\"" * 200, task="text_completion",
        priority="Interactive", input_tokens=1 << 53, cached_tokens=1 << 53, output_tokens=1 << 53,
        generated_tokens=1 << 53, status="interrupted", code="c" * 512, interrupted=True,
    )  # fmt: skip
    encoded = encode_line(line)
    assert len(encoded) <= 1_000
    assert decode_line(encoded).output_tokens == 1 << 53
