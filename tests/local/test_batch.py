"""`baton batch` on the tiny model: the answers of the HTTP API, every request once, also after an interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from baton_gateway.batches.lines import answer_line
from baton_local.__main__ import main
from baton_local.batch import execution as batch_run
from baton_testing.fake_hub import REPOSITORY, FakeHub, model_files, served

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny-llama"
QUESTION = "Tell me the fable of the fox and the lantern."


def request(custom_id: str, url: str = "/v1/chat/completions", **body: object) -> dict[str, object]:
    content = {"messages": [{"role": "user", "content": QUESTION}]} if "chat" in url else {}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "tiny", **content, **body}}


def answers(tmp_path: Path, *requests: dict[str, object]) -> dict[str, Any]:
    (tmp_path / "in").write_text("".join(json.dumps(request) + "\n" for request in requests))
    assert main(arguments(tmp_path)) == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    responses = {line["custom_id"]: line["response"] for line in lines}
    assert len(responses) == len(lines) == len(requests)
    return responses


def arguments(tmp_path: Path) -> list[str]:
    flags = ["--kv-cache-bytes", str(32 << 20), "--max-sequences", "16", "--max-context-tokens", "512"]
    return ["batch", str(tmp_path / "in"), str(tmp_path / "out"), "--model", str(TINY), "--served-name", "tiny", *flags]


def test_answers_are_those_of_the_api(tmp_path: Path) -> None:
    responses = answers(
        tmp_path,
        request("chat", max_tokens=24, temperature=0, logprobs=True, top_logprobs=2),
        request("stop", max_tokens=60, temperature=0, stop=["lantern"]),
        request("many", "/v1/completions", prompt=["The fox", "An owl"], n=2, max_tokens=5, echo=True),
        request("again", "/v1/completions", prompt=["The fox", "An owl"], n=2, max_tokens=5, seed=7),
        request("same", "/v1/completions", prompt=["The fox", "An owl"], n=2, max_tokens=5, seed=7),
    )
    assert {response["status_code"] for response in responses.values()} == {200}
    chat = responses["chat"]["body"]
    assert chat["choices"][0]["message"]["content"].startswith("A fox once found a lantern on the road")
    assert chat["choices"][0]["finish_reason"] == "length"
    assert len(chat["choices"][0]["logprobs"]["content"]) == 24
    assert chat["usage"]["completion_tokens"] == 24
    stop = responses["stop"]["body"]["choices"][0]
    assert (stop["message"]["content"], stop["finish_reason"]) == ("A fox once found a ", "stop")
    many = responses["many"]["body"]["choices"]
    assert [choice["index"] for choice in many] == [0, 1, 2, 3]
    assert [choice["text"][:6] for choice in many] == ["The fo", "The fo", "An owl", "An owl"]
    assert responses["many"]["body"]["usage"]["completion_tokens"] == 20
    assert responses["again"]["body"]["choices"] == responses["same"]["body"]["choices"]


def test_inputs_are_embedded_in_a_batch_and_a_bad_one_is_named(tmp_path: Path) -> None:
    responses = answers(
        tmp_path,
        request("both", "/v1/embeddings", input=["The fox", "An owl"], dimensions=4),
        request("fox", "/v1/embeddings", input="The fox", dimensions=4),
        request("bad", "/v1/embeddings", input=["The fox", ""]),
        request("chat", max_tokens=2),
    )
    assert {name: response["status_code"] for name, response in responses.items()} == {
        **dict.fromkeys(("both", "fox", "chat"), 200),
        "bad": 400,
    }
    first, second = (entry["embedding"] for entry in responses["both"]["body"]["data"])
    assert [entry["embedding"] for entry in responses["fox"]["body"]["data"]] == [first]
    assert len(second) == 4
    assert responses["bad"]["body"]["error"]["param"] == "input[1]"


def test_a_batch_may_name_the_model_by_its_aliases(tmp_path: Path) -> None:
    text = (TINY.parent / "tiny.yaml").read_text()
    text = text.replace("file://tiny-llama #", f"file://{TINY} #")
    text = text.replace("  decode:\n", "  decode:\n    tensorParallel: 2  # the engine of a batch has one rank\n")
    (tmp_path / "tiny.yaml").write_text(
        text.replace("servedName: tiny-llama", "servedName: tiny\n    aliases: [gpt-4o]")
    )
    lines = [request("own", max_tokens=2), request("alias", model="gpt-4o", max_tokens=2)]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["batch", str(tmp_path / "in"), str(tmp_path / "out"), "-f", str(tmp_path / "tiny.yaml")]) == 0
    written = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert {line["custom_id"]: line["response"]["body"]["model"] for line in written} == {
        "own": "tiny",
        "alias": "gpt-4o",
    }


@pytest.mark.parametrize("is_in_a_file", [True, False])
def test_a_model_that_lies_elsewhere_is_fetched_once(
    is_in_a_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: only `baton up` did, and a file with such a source was refused."""
    source = f"hf://{REPOSITORY}@{'a' * 40}"
    (tmp_path / "in").write_text(json.dumps(request("a", max_tokens=2)) + "\n")
    (tmp_path / "file.yaml").write_text(
        (TINY.parent / "tiny.yaml")
        .read_text()
        .replace("file://tiny-llama #", f"{source} #")
        .replace("servedName: tiny-llama", "servedName: tiny")
    )
    model = ["-f", str(tmp_path / "file.yaml")] if is_in_a_file else ["--model", source, "--served-name", "tiny"]
    with served(FakeHub(model_files(TINY))) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        for name in ("first", "second"):
            flags = ["batch", str(tmp_path / "in"), str(tmp_path / name), *model, "--cache", str(tmp_path / "cache")]
            assert main(flags) == 0
            assert json.loads((tmp_path / name).read_text())["response"]["status_code"] == 200
            assert bool(hub.seen) is (name == "first"), "the second finds it in the cache"
            hub.seen.clear()


def test_a_wrong_request_is_answered_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    responses = answers(
        tmp_path,
        request("long", max_tokens=5_000),
        request("stream", stream=True),
        request("model") | {"body": {"model": "other", "messages": [{"role": "user", "content": "x"}]}},
        request("field", temprature=1),
        request("good", max_tokens=4),
    )
    assert {name: response["status_code"] for name, response in responses.items()} == {
        "long": 400,
        "stream": 400,
        "model": 404,
        "field": 400,
        "good": 200,
    }
    assert responses["long"]["body"]["error"]["code"] == "context_length_exceeded"
    assert "baton: refused first: long: " in capsys.readouterr().err
    assert responses["field"]["body"]["error"]["param"] == "temprature"


def test_lines_that_are_no_requests_are_answered_once_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poisoned = json.dumps(request("poisoned") | {"body": {"model": "tiny", "prompt": "x", "\ud800": 1}})
    named = json.dumps(request("\ud800", max_tokens=4))
    good = [json.dumps(request(name, max_tokens=4)) for name in ("first", "last")]
    (tmp_path / "in").write_text("\n".join([good[0], poisoned, named, "not JSON", good[0], good[1]]) + "\n")
    assert main(arguments(tmp_path)) == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert {line["custom_id"] for line in lines if line["response"]["status_code"] == 200} == {"first", "last"}
    assert sorted(line["error"]["line"] for line in lines if line["error"]) == [2, 3, 4, 5]
    assert "4 lines are not valid requests" in capsys.readouterr().err
    assert main(arguments(tmp_path)) == 0
    assert "has an answer for each of the 6 requests" in capsys.readouterr().err
    assert len((tmp_path / "out").read_text().splitlines()) == 6


def test_a_file_without_any_request_is_refused_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("a letter\nof two lines\n")
    assert main(arguments(tmp_path)) == 2
    assert "no line is a request; line 1: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_without_a_line_is_answered_and_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found: none of no requests had another answer than a refusal, so the status was that of a batch all refused."""
    (tmp_path / "in").write_text("\n")
    assert main(arguments(tmp_path)) == 0
    assert "has an answer for each of the 0 requests" in capsys.readouterr().err


def test_an_interrupted_batch_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [request(f"r{number}", max_tokens=8 + number % 7) for number in range(60)]
    (tmp_path / "in").write_text("".join(json.dumps(request) + "\n" for request in requests))
    whole_run = batch_run.BatchRun.run

    def interrupted(run: batch_run.BatchRun, tick: object) -> None:
        def stop() -> None:
            if run.progress.answered >= 20:
                raise KeyboardInterrupt

        whole_run(run, stop)

    with monkeypatch.context() as patched:
        patched.setattr(batch_run.BatchRun, "run", interrupted)
        assert main(arguments(tmp_path)) == 130
    first = (tmp_path / "out").read_text().splitlines()
    assert 20 <= len(first) < 60
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batch")]

    assert main(arguments(tmp_path)) == 0
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[: len(first)] == first
    assert sorted(json.loads(line)["custom_id"] for line in lines) == sorted(f"r{number}" for number in range(60))


def test_what_a_broken_model_says_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_text(json.dumps(request("a")) + "\n")
    flags = ["batch", str(tmp_path / "in"), str(tmp_path / "out"), "--model", str(tmp_path)]
    assert main(flags) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_batch_whose_every_request_is_refused_fails_and_says_so_again_when_it_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: a wrong model name ended in status 0, and a corrected file was "answered" by the old refusals."""
    wrong = [request(name, max_tokens=2) for name in "abc"]
    for line in wrong:
        line["body"] = {**line["body"], "model": "other"}  # type: ignore[dict-item]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in wrong))
    assert main(arguments(tmp_path)) == 1
    printed = capsys.readouterr()
    assert "3 answers (3 refused, with 404)" in printed.out
    assert "baton: refused first: " in printed.err

    (tmp_path / "in").write_text("".join(json.dumps(request(name, max_tokens=2)) + "\n" for name in "abc"))
    assert main(arguments(tmp_path)) == 1
    printed = capsys.readouterr()
    assert "has an answer for each of the 3 requests" in printed.err
    assert "baton: of them 3 refused, with 404; first: " in printed.err
    assert "baton: --retry-refused removes the refusals from OUT and asks their requests again" in printed.err

    lines = [json.dumps(request(name, max_tokens=2)) + "\n" for name in "abcd"]
    (tmp_path / "in").write_text("".join(lines))
    assert main(arguments(tmp_path)) == 0, "one has an answer now"
    assert "3 of 4 requests are already answered" in capsys.readouterr().err


def test_a_corrected_batch_asks_again_what_was_refused_and_each_line_has_one_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: corrected lines kept their old refusals in OUT, and those with a wrong field were never asked again."""
    good = [json.dumps(request(name, max_tokens=2)) for name in ("first", "field", "cut", "twice")]
    wrong_field = json.dumps(request("field", temprature=1))
    (tmp_path / "in").write_text("\n".join([good[0], wrong_field, good[2][:-9], good[0]]) + "\n")
    assert main(arguments(tmp_path)) == 0
    first = next(line for line in (tmp_path / "out").read_text().splitlines() if '"custom_id":"first"' in line)

    (tmp_path / "in").write_text("\n".join(good) + "\n")
    capsys.readouterr()
    assert main(arguments(tmp_path)) == 0
    errors = capsys.readouterr().err
    assert "baton: of them 1 refused, with 400; first: " in errors
    assert "baton: other refusals in " in errors
    assert "of lines that IN does not have (any more): 2\n" in errors
    assert "--retry-refused" in errors
    assert len((tmp_path / "out").read_text().splitlines()) == 6, "four lines, and two refusals of former ones"

    assert main([*arguments(tmp_path), "--retry-refused"]) == 0
    assert "to ask their requests again: 3\n" in capsys.readouterr().err
    lines = (tmp_path / "out").read_text().splitlines()
    assert first in lines, "an answer is not asked again"
    assert sorted(json.loads(line)["custom_id"] for line in lines) == ["cut", "field", "first", "twice"]
    assert {json.loads(line)["response"]["status_code"] for line in lines} == {200}


def test_a_finished_batch_loads_no_engine(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(json.dumps(request("a")) + "\n")
    (tmp_path / "out").write_bytes(answer_line("a", 200, b'{"x":1}'))
    code = f"import sys; from baton_local.__main__ import main; print(main({arguments(tmp_path)!r}))\n"
    code += "print([name for name in ('torch', 'numpy', 'aiohttp', 'pydantic') if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n[]\n"
