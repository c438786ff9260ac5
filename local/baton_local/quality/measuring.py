"""`baton quality MODEL --against REFERENCE --text FILE`: what a model loses, measured where users ask it."""

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
from baton_local.argument_types import device, integer
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
from baton_local.shared_options import KEY_VARIABLE, add_fetch_options
from baton_local.text_table import table
from baton_wire.models.errors import ModelError
from baton_worker.building.memory_limit import free_bytes

READY_S = 600
MOST_BYTES = 16 << 20
"""Of a text: some four million tokens, of which each has 20 likeliest ones that are kept."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton quality`."""
    what = "a model as `baton up` takes it, an LLMDeployment's .yaml, or the http(s) URL of a gateway"
    parser.add_argument("model", metavar="MODEL", help=what)
    parser.add_argument("--against", required=True, metavar="REFERENCE", help="the same, of the original")
    parser.add_argument(
        "--text",
        type=Path,
        required=True,
        metavar="FILE",
        help="text to ask about; .jsonl: one a line",
    )
    parser.add_argument(
        "--passage-chars", type=integer(16, 1 << 20), default=1000, metavar="N", help="the text is cut so (1000)"
    )
    parser.add_argument(
        "--answer-tokens", type=integer(2, 4096), default=64, metavar="N", help="greedy, after each passage (64)"
    )
    parser.add_argument("--passages", type=integer(1, 1 << 20), metavar="N", help="only the first ones (default: all)")
    parser.add_argument(
        "--device", type=device, metavar="DEVICE", help="cpu or cuda (default: a GPU where there is one)"
    )
    parser.add_argument("--ready-timeout", type=integer(1, 86_400), default=READY_S, metavar="S", help="of a start")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_fetch_options(parser)


def run_quality(options: argparse.Namespace) -> int:
    """The command. Raises LocalError, ManifestError."""
    passages = _passages(options.text, options.passage_chars)[: options.passages]
    if not passages:
        raise StartError(f"--text {options.text}: is empty")
    with tempfile.TemporaryDirectory(prefix="baton-quality-") as folder:
        # Both are looked at before the first is asked: that can take hours.
        of_reference, of_model = (_found(asked, options, Path(folder)) for asked in (options.against, options.model))
        with _served(of_reference, options) as service:
            reference = _scored("reference", service, passages, options.answer_tokens)
        with _served(of_model, options) as service:
            model = _scored("model", service, passages, options.answer_tokens)
    quality = judged(reference, model)
    print(json.dumps(dataclasses.asdict(quality), indent=2) if options.json else as_text(quality))
    return 0


def _passages(path: Path, characters: int) -> list[str]:
    """Of a text, its pieces; of a .jsonl, the `text` of each line as it is. Raises StartError."""
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


def judged(reference: Sequence[Scored], model: Sequence[Scored]) -> Quality:
    """Pure. Raises LocalError where the two made different tokens of a passage."""
    pairs = list(zip(reference, model, strict=True))
    for number, (theirs, mine) in enumerate(pairs, 1):
        if [place.token for place in theirs.prompt] != [place.token for place in mine.prompt]:
            raise LocalError(f"passage {number}: model and reference make different tokens of it: no comparison")
    prompts = compare([each for theirs, mine in pairs for each in zip(theirs.prompt, mine.prompt, strict=True)])
    answers, changed = compare_answers([(theirs.answer, mine.answer) for theirs, mine in pairs])
    return Quality(prompts, answers, len(pairs), changed)


def as_text(quality: Quality) -> str:
    """The table. Pure."""
    both = (quality.prompts, quality.answers)

    def row(name: str, *told: str | int | None) -> tuple[object, ...]:
        return (name, *told)

    def each(name: str, field: str, form: str) -> tuple[object, ...]:
        return row(name, *(_shown(one, field, form) for one in both))

    rows = [
        row("tokens compared", *(f"{one.tokens:,}" for one in both)),
        each("perplexity of the reference", "reference_perplexity", "{:.4f}"),
        each("perplexity of the model", "perplexity", "{:.4f}"),
        each("same likeliest token", "same_likeliest", "{:.3%}"),
        each("divergence, nats a token, at least", "divergence", "{:.2e}"),
        each("of the worst 1 %, from", "divergence_worst", "{:.2e}"),
        each("greatest", "divergence_greatest", "{:.2e}"),
        each("probability not told apart", "mass_outside", "{:.2e}"),
        row("answers that changed", None, f"{quality.changed} of {quality.asked}"),
    ]
    return table(("", "PROMPTS", "ANSWERS"), rows)


def _shown(one: Comparison, field: str, form: str) -> str | None:
    value = getattr(one, field)
    return None if value is None else form.format(value)


def _scored(what: str, service: ServedModel, passages: list[str], answer_tokens: int) -> list[Scored]:
    with ProgressBar(what, len(passages), " passages") as bar:
        count = 0

        def done() -> None:
            nonlocal count
            count += 1
            bar.at(count)

        bar.at(0)
        try:
            return asyncio.run(score(service, passages, answer_tokens, done))
        except* LocalError as errors:
            raise errors.exceptions[0] from None


def _found(asked: str, options: argparse.Namespace, folder: Path) -> ServedModel | Path:
    """A service that runs, or the manifest of one that can be started. Raises LocalError, ManifestError."""
    if asked.startswith(("http://", "https://")):
        key = os.environ.get(KEY_VARIABLE)
        return ServedModel(asked.rstrip("/"), asyncio.run(served_name(asked.rstrip("/"), key)), key)
    if asked.endswith((".yaml", ".yml")):
        read_manifest(Path(asked))
        return Path(asked)
    cache = open_cache(options.cache, options.cache_size, os.environ)
    return _written(asked, options, cache, _device(options), folder)


@contextmanager
def _served(found: ServedModel | Path, options: argparse.Namespace) -> Iterator[ServedModel]:
    """A service to ask: one that runs, or one that this command starts and stops. Raises LocalError, ManifestError."""
    if isinstance(found, ServedModel):
        yield found
        return
    arguments = ["--port", "0", "--device", _device(options), "--ready-timeout", str(options.ready_timeout)]
    arguments += ["--cache", str(options.cache)] if options.cache else []
    with own_deployment(found, arguments, options.ready_timeout) as own:
        yield ServedModel(own.record.endpoint, own.record.served_name, key_for(own.record, os.environ))
        check_moved(own.settled())


def _device(options: argparse.Namespace) -> Device:
    return Device(options.device or (Device.CUDA if gpu_ids(os.environ) else Device.CPU))


def _written(asked: str, options: argparse.Namespace, cache: ModelCache, chosen: Device, folder: Path) -> Path:
    """A deployment of one worker a pool, where every prompt is computed by the prefill worker."""
    here = fetch_local_model(asked, cache, os.environ, options.latest)
    try:
        config = servable_model(here.folder)
        context = context_tokens(config, None, free_bytes(chosen) if chosen is Device.CPU else None)
    except ModelError as error:
        raise StartError(f"{asked} cannot be served: {error}") from error
    made = default_deployment(here.source, here.served_name, context, is_on_gpu=chosen is Device.CUDA)
    routing = made.spec.routing.model_copy(update={"disaggregation": Disaggregation.ALWAYS})
    made = made.model_copy(update={"spec": made.spec.model_copy(update={"routing": routing})})
    path = Path(tempfile.mkdtemp(dir=folder)) / "deployment.yaml"
    path.write_text(as_yaml(made))
    return path
