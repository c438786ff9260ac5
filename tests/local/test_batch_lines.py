"""The lines of a batch: what is a request, and what the answer to anything else says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from baton_gateway.batches import lines
from baton_gateway.batches.lines import BadLine, BatchLine, answer_line, answered_id, read_lines
from baton_local.batch.input_file import read_input
from baton_local.errors import StartError

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def written(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_lines_come_in_order_and_blank_ones_are_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "in", GOOD, "", GOOD | {"custom_id": "b"})
    assert list(read_lines(path)) == [
        BatchLine("a", "/v1/completions", {"prompt": "x"}),
        BatchLine("b", "/v1/completions", {"prompt": "x"}),
    ]


@pytest.mark.parametrize(
    ("line", "message", "custom_id"),
    [
        ("{", "not valid JSON", None),
        ("[]", "must be a JSON object", None),
        ('{"custom_id": NaN}', "NaN", None),
        ("[" * 100_000, "deeper", None),
        (GOOD | {"custom_id": ""}, "custom_id: must be a text of 1 to 512", None),
        (GOOD | {"custom_id": 3}, "custom_id: must be a text", None),
        (GOOD | {"custom_id": 3}, "characters, not 3", None),
        ({"body": {}}, "characters, not null", None),
        (GOOD | {"custom_id": "x" * 600}, 'characters, not "xxx', None),
        (GOOD | {"custom_id": "\ud800"}, "", None),
        (GOOD | {"custom_id": "b", "body": {"\ud800": 1}}, "surrogate", "b"),
        (GOOD | {"custom_id": "b", "body": {"prompt": ["x", {"y": "\udfff"}]}}, "surrogate", "b"),
        ({"body": {"custom_id": "z", "prompt": "\udfff"}, "custom_id": "b"}, "surrogate", "b"),
        ({"body": {"custom_id": "z", "prompt": "\udfff"}}, "surrogate", None),
        ('{"\\ud800":1,"\\ud800":2}', "", None),
        (GOOD | {"custom_id": "b", "\ud800": 1}, "surrogate", "b"),
        ('{"x": "custom_id", "custom_id" : "\\u0062", "body": {', "not valid JSON", "b"),
        ('{"custom_id": "b", "body": NaN}', "NaN", "b"),
        ('{"custom_id": "b", "body": ' + "[" * 100, "deeper", "b"),
        ('{"custom_id": "b", "body": {"x": 1, "x": 2}}', "twice", "b"),
        ('{"custom_id": "b", "custom_id": "z"}', "twice", None),
        ('{"custom_id": "b", "custom_id": 5, "body": {}}', "twice", None),
        ('{"custom_id": "b' + "x" * 600 + '", "body": NaN}', "NaN", None),
        ('{"custom_id": "\\ud800", "body": NaN}', "surrogate", None),
        ('[{"custom_id": "b"}', "not valid JSON", None),
        ('{"custom_id": "a", "body": NaN}', "NaN", None),
        (GOOD | {"custom_id": "b", "method": "GET"}, "method: must be POST", "b"),
        (GOOD | {"custom_id": "b", "url": "/v1/images"}, "url: must be one of /v1/chat/completions", "b"),
        (GOOD | {"custom_id": "b", "body": "x"}, "body: must be an object", "b"),
        (GOOD | {"custom_id": "b", "model": "x"}, "model: unknown field", "b"),
        (GOOD, "custom_id: 'a' occurs twice, first in line 1", None),
    ],
    ids=str,
)
def test_a_broken_line_is_answered_by_its_number(tmp_path: Path, line: object, message: str, custom_id: object) -> None:
    path = written(tmp_path / "in", GOOD, line, GOOD | {"custom_id": "c"})
    first, bad, last = read_lines(path)
    assert isinstance(first, BatchLine)
    assert isinstance(last, BatchLine)
    assert isinstance(bad, BadLine)
    answer = json.loads(bad.answer())
    assert answered_id(bad.answer()) == bad.id == answer["id"]
    assert answer["response"]["status_code"] == 400
    assert message in answer["error"]["message"]
    assert message in answer["response"]["body"]["error"]["message"]
    assert answer["error"]["line"] == 2
    assert custom_id is ... or answer["custom_id"] == custom_id


def test_a_line_without_end_is_answered_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200)
    _, bad, last = read_lines(written(tmp_path / "in", GOOD, "x" * 5_000, GOOD | {"custom_id": "c"}))
    assert isinstance(bad, BadLine)
    assert "longer than the 200 bytes" in bad.message
    assert last == BatchLine("c", "/v1/completions", {"prompt": "x"})


def test_a_line_without_end_has_the_id_that_it_begins_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200)
    _, bad = read_lines(written(tmp_path / "in", GOOD, GOOD | {"custom_id": "b", "body": {"prompt": "x" * 5_000}}))
    assert isinstance(bad, BadLine)
    assert bad.custom_id == "b"


def test_a_line_that_is_no_request_takes_no_request_its_id(tmp_path: Path) -> None:
    bad, good = read_lines(written(tmp_path / "in", GOOD | {"method": "GET"}, GOOD))
    assert isinstance(bad, BadLine)
    assert isinstance(good, BatchLine)
    assert bad.custom_id == good.custom_id == "a"


def test_any_bytes_are_lines(tmp_path: Path) -> None:
    draw = random.Random(7)
    good = json.dumps(GOOD | {"custom_id": "é\\ud83d"}).encode()
    for _ in range(2_000):
        line = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            line[draw.randrange(len(line))] = draw.choice(b'"\\{}[],:u0d8\xff\xc3\x00a')
        (tmp_path / "in").write_bytes(bytes(line))
        for entry in read_lines(tmp_path / "in"):
            answer = entry.answer() if isinstance(entry, BadLine) else answer_line(entry.custom_id, 200, b"{}")
            assert answered_id(answer) == entry.id


def test_a_mended_line_is_another(tmp_path: Path) -> None:
    (bad,) = read_lines(written(tmp_path / "in", "{"))
    (worse,) = read_lines(written(tmp_path / "in", "{{"))
    assert bad.id != worse.id


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="in: No such file"):
        list(read_input(tmp_path / "in"))


def test_an_answer_is_what_openai_writes() -> None:
    line = json.loads(answer_line("a", 200, b'{"object":"chat.completion"}'))
    assert line["custom_id"] == "a"
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"] == {"object": "chat.completion"}
    assert line["error"] is None


def test_a_byte_order_mark_before_a_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "in"
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}).encode()
    other = line.replace(b'"a"', b'"b"')
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\n\xef\xbb\xbf" + other + b"\n\xef\xbb\xbf\n")
    assert [(type(entry), entry.custom_id) for entry in read_lines(path)] == [(BatchLine, "a"), (BatchLine, "b")]
