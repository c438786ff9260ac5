"""`baton quality MODEL --against REFERENCE --text FILE`: measures what a model loses, through the public API."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from baton_control.spec.api import Disaggregation
from baton_control.spec.manifest import read_manifest
from baton_control.worker_specs import Device
from baton_engine.model.servable import servable_model
from baton_local.argument_types import device, integer, time_or
from baton_local.errors import LocalError, StartError
from baton_local.fetching.default_deployment import as_yaml, context_tokens, default_deployment
from baton_local.fetching.local_model import fetch_local_model
from baton_local.fetching.model_cache import ModelCache, open_cache
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.host import gpu_ids
from baton_local.fleet.own_deployment import check_moved, own_deployment
from baton_local.progress_bar import ProgressBar
from baton_local.quality.comparison import Comparison, Quality, compare, compare_answers
from baton_local.quality.scoring import Scored, ServedModel, passages_of, score, served_name
from baton_local.quality.verdict import verdict
from baton_local.shared_options import KEY_VARIABLE, add_fetch_options
from baton_local.text_table import table
from baton_wire.models.errors import ModelError
from baton_worker.building.memory_limit import free_bytes

MOST_BYTES = 16 << 20
"""Largest text: some four million tokens, each with its 20 likeliest ones in memory."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton quality`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="model as for `baton up`, .yaml manifest of an LLMDeployment, or http(s) URL of a gateway",
    )
    parser.add_argument("--against", required=True, metavar="REFERENCE", help="reference model, in the same forms")
    parser.add_argument(
        "--text",
        type=Path,
        required=True,
        metavar="FILE",
        help="text for the prompts; .jsonl: one passage per line",
    )
    parser.add_argument(
        "--passage-chars",
        type=integer(16, 1 << 20),
        default=1000,
        metavar="N",
        help="maximum characters of a passage (default: %(default)s)",
    )
    parser.add_argument(
        "--answer-tokens",
        type=integer(2, 4096),
        default=64,
        metavar="N",
        help="tokens of the greedy answer after each passage (default: %(default)s)",
    )
    parser.add_argument(
        "--passages", type=integer(1, 1 << 20), metavar="N", help="number of passages to use (default: all)"
    )
    parser.add_argument(
        "--device", type=device, metavar="DEVICE", help="cpu or cuda (default: cuda if there is a GPU, else cpu)"
    )
    parser.add_argument(
        "--ready-timeout",
        type=time_or("s"),
        default="10m",
        metavar="TIME",
        help="timeout for the start of a deployment (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_fetch_options(parser)


def run_quality(options: argparse.Namespace) -> int:
    """Run `baton quality`. Raises LocalError, ManifestError."""
    passages = _passages(options.text, options.passage_chars)[: options.passages]
    if not passages:
        raise StartError(f"--text {options.text}: is empty")
    with tempfile.TemporaryDirectory(prefix="baton-quality-") as folder:
        # Both arguments are checked before the first model is measured, which can take hours.
        against, measured = (_resolve(text, options, Path(folder)) for text in (options.against, options.model))
        with _serve(against, options) as service:
            reference = _score("reference", service, passages, options.answer_tokens)
        with _serve(measured, options) as service:
            model = _score("model", service, passages, options.answer_tokens)
    quality = compare_scores(reference, model)
    print(
        json.dumps({**dataclasses.asdict(quality), "verdict": verdict(quality)}, indent=2)
        if options.json
        else as_text(quality)
    )
    return 0


def _passages(path: Path, characters: int) -> list[str]:
    """The passages of a text file; of a .jsonl, the `text` of each line. Raises StartError."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise StartError(f"--text {path}: {size} bytes is more than the allowed {MOST_BYTES}")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--text {path}: {error}") from error
    if path.suffix != ".jsonl":
        return passages_of(text, characters)
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        return [msgspec.json.decode(line, type=_Line).text for line in lines]
    except msgspec.DecodeError as error:
        raise StartError(f"--text {path}: a line must be an object with a string 'text': {error}") from error


class _Line(msgspec.Struct, frozen=True):
    text: Annotated[str, msgspec.Meta(min_length=1)]


def compare_scores(reference: Sequence[Scored], model: Sequence[Scored]) -> Quality:
    """Compare the scores of two models. Pure. Raises LocalError when they tokenise a passage differently."""
    pairs = list(zip(reference, model, strict=True))
    for number, (theirs, mine) in enumerate(pairs, 1):
        if [place.token for place in theirs.prompt] != [place.token for place in mine.prompt]:
            raise LocalError(f"passage {number}: model and reference tokenise it differently, so it cannot be compared")
    prompts = compare([places for theirs, mine in pairs for places in zip(theirs.prompt, mine.prompt, strict=True)])
    answers, changed = compare_answers([(theirs.answer, mine.answer) for theirs, mine in pairs])
    return Quality(prompts, answers, len(pairs), changed)


def as_text(quality: Quality) -> str:
    """The comparison as a text table, and a sentence that says what follows. Pure."""
    comparisons = (quality.prompts, quality.answers)

    def row(name: str, field: str, form: str) -> tuple[object, ...]:
        return (name, *(_format(comparison, field, form) for comparison in comparisons))

    rows = [
        row("tokens compared", "tokens", "{:,}"),
        row("perplexity of the reference", "reference_perplexity", "{:.4f}"),
        row("perplexity of the model", "perplexity", "{:.4f}"),
        row("same likeliest token", "same_likeliest", "{:.3%}"),
        row("divergence, nats per token, at least", "divergence", "{:.2e}"),
        row("divergence of the worst 1 %, from", "divergence_worst", "{:.2e}"),
        row("greatest divergence", "divergence_greatest", "{:.2e}"),
        row("probability not compared", "mass_outside", "{:.2e}"),
        ("answers that changed", None, f"{quality.changed} of {quality.asked}"),
    ]
    return f"{table(('', 'PROMPTS', 'ANSWERS'), rows)}\n\n{verdict(quality)}"


def _format(comparison: Comparison, field: str, form: str) -> str | None:
    value = getattr(comparison, field)
    return None if value is None else form.format(value)


def _score(label: str, service: ServedModel, passages: list[str], answer_tokens: int) -> list[Scored]:
    with ProgressBar(label, len(passages), " passages") as bar:
        count = 0

        def done() -> None:
            nonlocal count
            count += 1
            bar.at(count)

        bar.at(0)
        try:
            return asyncio.run(score(service, passages, answer_tokens, done))
        except ExceptionGroup as group:  # what except* raises is in a group again before Python 3.11.4
            failure = next((error for error in group.exceptions if isinstance(error, LocalError)), None)
            if failure is None or group.split(LocalError)[1] is not None:
                raise
            raise failure from None


def _resolve(text: str, options: argparse.Namespace, folder: Path) -> ServedModel | Path:
    """The running service that an argument names, or the manifest of a deployment to start. Raises LocalError,
    ManifestError."""
    if text.startswith(("http://", "https://")):
        key = os.environ.get(KEY_VARIABLE)
        return ServedModel(text.rstrip("/"), asyncio.run(served_name(text.rstrip("/"), key)), key)
    if text.endswith((".yaml", ".yml")):
        read_manifest(Path(text))
        return Path(text)
    cache = open_cache(options.cache, options.cache_size, os.environ)
    return _write_manifest(text, options, cache, _device(options), folder)


@contextmanager
def _serve(target: ServedModel | Path, options: argparse.Namespace) -> Iterator[ServedModel]:
    """A running service, or one that is started from a manifest and stopped at the end. Raises LocalError,
    ManifestError."""
    if isinstance(target, ServedModel):
        yield target
        return
    arguments = ["--port", "0", "--device", _device(options), "--ready-timeout", str(options.ready_timeout)]
    arguments += ["--cache", str(options.cache)] if options.cache else []
    with own_deployment(target, arguments, options.ready_timeout) as own:
        yield ServedModel(own.record.endpoint, own.record.served_name, key_for(own.record, os.environ))
        check_moved(own.settled())


def _device(options: argparse.Namespace) -> Device:
    return Device(options.device or (Device.CUDA if gpu_ids(os.environ) else Device.CPU))


def _write_manifest(text: str, options: argparse.Namespace, cache: ModelCache, chosen: Device, folder: Path) -> Path:
    """Write the manifest of a deployment with one worker per pool, whose prefill worker computes every prompt."""
    model = fetch_local_model(text, cache, os.environ, options.latest)
    try:
        config = servable_model(model.folder)
        context = context_tokens(config, None, free_bytes(chosen) if chosen is Device.CPU else None)
    except ModelError as error:
        raise StartError(f"{text} cannot be served: {error}") from error
    deployment = default_deployment(model.source, model.served_name, context, is_on_gpu=chosen is Device.CUDA)
    routing = deployment.spec.routing.model_copy(update={"disaggregation": Disaggregation.ALWAYS})
    deployment = deployment.model_copy(update={"spec": deployment.spec.model_copy(update={"routing": routing})})
    path = Path(tempfile.mkdtemp(dir=folder)) / "deployment.yaml"
    path.write_text(as_yaml(deployment))
    return path
