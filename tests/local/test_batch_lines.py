"""The files of a batch: what is refused and how, what a resumed run finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton_local.batch.lines import BatchLine, answer_line, answered_ids, read_lines
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
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"custom_id": NaN}', "NaN"),
        (GOOD | {"custom_id": ""}, "custom_id: must be a text of 1 to 512"),
        (GOOD | {"custom_id": 3}, "custom_id: must be a text"),
        (GOOD | {"method": "GET"}, "method: must be POST"),
        (GOOD | {"url": "/v1/embeddings"}, "url: must be one of /v1/chat/completions, /v1/completions"),
        (GOOD | {"body": "x"}, "body: must be an object"),
        (GOOD | {"model": "x"}, "model: unknown field"),
        (GOOD, "custom_id: 'a' occurs twice"),
    ],
)
def test_a_broken_line_is_refused_by_number_and_field(tmp_path: Path, line: object, said: str) -> None:
    path = written(tmp_path / "in", GOOD, line)
    with pytest.raises(StartError, match=r"in, line 2: ") as refused:
        list(read_lines(path))
    assert said in str(refused.value)


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="in: No such file"):
        list(read_lines(tmp_path / "in"))


def test_a_resumed_run_finds_whole_answers_and_cuts_off_the_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    whole = answer_line("a", 200, b'{"x":1}') + answer_line("b", 400, b'{"error":{}}')
    path.write_bytes(whole + answer_line("c", 200, b"{}")[:-7])
    assert answered_ids(path) == {"a", "b"}
    assert path.read_bytes() == whole


def test_an_answer_is_what_openai_writes() -> None:
    line = json.loads(answer_line("a", 200, b'{"object":"chat.completion"}'))
    assert line["custom_id"] == "a"
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"] == {"object": "chat.completion"}
    assert line["error"] is None


def test_another_file_is_never_appended_to(tmp_path: Path) -> None:
    path = written(tmp_path / "out", GOOD)
    with pytest.raises(StartError, match="not an answer of a batch"):
        answered_ids(path)
    assert answered_ids(tmp_path / "new") == set()
