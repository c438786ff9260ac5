"""Discovery: sources, answers, and that unknown is never nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton_testing.kv_transfer.builders import eventually
from baton_wire.discovery import (
    DnsSource,
    Endpoint,
    FileSource,
    look_up,
    parse_endpoints,
    parse_source,
    watch,
)


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ("file:/run/decode.json", FileSource(Path("/run/decode.json"))),
        ("file:a:b", FileSource(Path("a:b"))),
        ("dns:chat-decode.team-a.svc.cluster.local.:8001", DnsSource("chat-decode.team-a.svc.cluster.local.", 8001)),
    ],
)
def test_sources_are_parsed_and_print_as_given(spec: str, source: object) -> None:
    assert parse_source(spec) == source
    assert str(parse_source(spec)) == spec


@pytest.mark.parametrize(
    "spec", ["", "file:", "dns:", "dns:name", "dns:name:", "dns:name:0", "dns:name:70000", "dns::80", "dns:n:8o", "x:y"]
)
def test_a_bad_source_is_named(spec: str) -> None:
    with pytest.raises(ValueError, match="is neither file:PATH nor dns:"):
        parse_source(spec)


def test_endpoints_are_sorted_and_once() -> None:
    text = '[{"host":"b","port":2,"pair_port":3},{"host":"a","port":1},{"host":"a","port":1,"zone":"x"}]'
    assert parse_endpoints(text) == (Endpoint("a", 1), Endpoint("b", 2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[1]",
        "[",
        '[{"host":"a"}]',
        '[{"host":"","port":1}]',
        '[{"host":1,"port":1}]',
        '[{"host":"a","port":"1"}]',
        '[{"host":"a","port":true}]',
        '[{"host":"a","port":0}]',
        '[{"host":"a","port":1,"pair_port":65536}]',
        '[{"host":"a","port":1},{"host":"b"}]',
        "[" * 100_000,
    ],
)
def test_anything_else_is_unknown(text: str) -> None:
    assert parse_endpoints(text) is None


async def test_a_file_is_read_and_a_missing_or_broken_one_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    source = FileSource(path)
    assert await look_up(source) is None
    path.write_text('[{"host":"127.0.0.1","port":5}]')
    assert await look_up(source) == (Endpoint("127.0.0.1", 5),)
    path.write_bytes(b"\xff\xfe")
    assert await look_up(source) is None
    path.write_text(" " * (1 << 20) + "[]")
    assert await look_up(source) is None
    assert await look_up(FileSource(tmp_path)) is None


async def test_names_are_resolved_and_unresolvable_ones_are_unknown() -> None:
    assert Endpoint("127.0.0.1", 81) in (await look_up(DnsSource("localhost", 81)) or ())
    assert await look_up(DnsSource("a" * 300, 81)) is None


async def test_a_watch_tells_changes_and_skips_the_unknown(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    answers: list[tuple[Endpoint, ...]] = []
    task = asyncio.create_task(watch(f"file:{path}", answers.append, interval_s=0.005))
    path.write_text('[{"host":"a","port":1}]')
    await eventually(lambda: answers)
    path.write_text("[")
    await asyncio.sleep(0.03)
    path.write_text('[{"host":"a","port":1}]')
    await asyncio.sleep(0.03)
    assert answers == [(Endpoint("a", 1),)]
    path.write_text('[{"host":"b","port":1}]')
    await eventually(lambda: len(answers) == 2)
    assert answers[1] == (Endpoint("b", 1),)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
