"""Refusals of `baton quality`, before it measures for hours where that can be known."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from baton_control.errors import ManifestError
from baton_local.client import AnswerError
from baton_local.errors import StartError
from baton_local.quality import measuring
from baton_local.quality.measuring import add_options, run_quality
from baton_local.quality.scoring import Scored, ServedModel, score, served_name
from baton_testing.engine import tiny_llama

MODELS = b'{"data": [{"id": "m"}]}'
PROMPT = b'"prompt_logprobs": [null, {"7": {"logprob": -1.0}}]'


async def asked(models: tuple[int, bytes], completion: tuple[int, bytes]) -> list[Scored]:
    """One passage, of a server that answers so."""

    async def of_models(request: web.Request) -> web.Response:
        return web.Response(status=models[0], body=models[1])

    async def of_completions(request: web.Request) -> web.Response:
        return web.Response(status=completion[0], body=completion[1])

    app = web.Application()
    app.add_routes([web.get("/v1/models", of_models), web.post("/v1/completions", of_completions)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint = "http://{}:{}".format(*runner.addresses[0][:2])
        name = await served_name(endpoint, None)
        return await score(ServedModel(endpoint, name, None), ["text"], 4, lambda: None)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("models", "completion", "message"),
    [
        ((200, b"<html>"), (200, b""), "/v1/models: is no answer of a Baton gateway: JSON is malformed"),
        ((200, b'{"x": 1}'), (200, b""), "missing required field `data`"),
        ((200, b'{"data": [{"id": "a"}, {"id": "b"}]}'), (200, b""), "serves 2 models: a, b"),
        ((401, b'{"error": {"message": "no key"}}'), (200, b""), "/v1/models: HTTP 401: no key"),
        ((200, MODELS), (500, b'{"error": "boom"}'), 'completions: HTTP 500: {"error": "boom"}'),
        ((200, MODELS), (502, b"bad\ngateway \xff"), "completions: HTTP 502: bad gateway \ufffd"),
        ((200, MODELS), (200, b"[]"), "completions: is no answer of a Baton gateway"),
        ((200, MODELS), (200, b'{"choices": []}'), "of length >= 1"),
        ((200, MODELS), (200, b'{"choices": [{"logprobs": null, ' + PROMPT + b"}]}"), "logprobs"),
        (
            (200, MODELS),
            (
                200,
                b'{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": []}, '
                + PROMPT
                + b"}]}",
            ),
            "lists of unequal lengths",
        ),
    ],
)
def test_a_server_that_answers_otherwise_is_told_in_one_line(
    models: tuple[int, bytes], completion: tuple[int, bytes], message: str
) -> None:
    with pytest.raises((AnswerError, ExceptionGroup)) as raised:
        asyncio.run(asked(models, completion))
    error = raised.value
    text = str(error.exceptions[0] if isinstance(error, ExceptionGroup) else error)
    assert message in text
    assert "\n" not in text


def options(tmp_path: Path, model: Path, reference: Path) -> argparse.Namespace:
    text = tmp_path / "text.txt"
    text.write_text("\ufeffonce upon a time", encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = [str(model), "--against", str(reference), "--text", str(text), "--cache", str(tmp_path / "cache")]
    return parser.parse_args([*given, "--device", "cpu"])


@pytest.mark.parametrize("is_reference", [False, True])
@pytest.mark.parametrize("suffix", ["", ".yaml"])
def test_neither_model_is_asked_where_the_other_cannot_be_served(
    is_reference: bool, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    @contextmanager
    def serve(target: object, options: argparse.Namespace) -> Iterator[ServedModel]:
        served.append(target)
        yield ServedModel("http://127.0.0.1:9", "m", None)

    monkeypatch.setattr(measuring, "_serve", serve)
    monkeypatch.setattr(measuring, "_score", lambda what, service, passages, tokens: [Scored((), ())])
    missing = tmp_path / f"nothere{suffix}"
    models = (tiny_llama.FOLDER, missing) if is_reference else (missing, tiny_llama.FOLDER)
    with pytest.raises((StartError, ManifestError), match=r"nothere.*(no such folder|cannot be read)"):
        run_quality(options(tmp_path, *models))
    assert not served
    assert run_quality(options(tmp_path, tiny_llama.FOLDER, tiny_llama.FOLDER)) == 0
    assert len(served) == 2


def test_a_text_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    with text.open("wb") as file:
        file.truncate(measuring.MOST_BYTES + 1)
    with pytest.raises(StartError, match=rf"text\.txt: {measuring.MOST_BYTES + 1} bytes is more than the allowed"):
        measuring._passages(text, 1000)


def test_the_mark_of_an_encoding_is_no_part_of_a_text(tmp_path: Path) -> None:
    assert measuring._passages(options(tmp_path, tmp_path, tmp_path).text, 1000) == ["once upon a time"]
