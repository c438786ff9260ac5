"""Answers the requests of a batch with one engine in this process. Importing it loads torch, so that `command` does so
only where requests are left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from baton_control.spec.manifest import read_manifest
from baton_control.worker_specs import Device, Site, worker_spec
from baton_engine.model.loading import RANDOM_SCHEME
from baton_gateway.answers.formats import DETECTED_FORMATS, FormatNames
from baton_gateway.text.revision_text import load_text_model
from baton_gateway.workers.request_limits import ModelLimits
from baton_local.batch.answers import Answers
from baton_local.batch.execution import GPU_BLOCK_TOKENS, BatchRun, Progress
from baton_local.batch.input_file import read_input
from baton_local.batch.jobs import Desk
from baton_local.errors import StartError
from baton_local.fetching.local_model import deployment_from_manifest, fetch_local_model
from baton_local.fetching.model_cache import ModelCache, open_cache
from baton_local.fleet.host import devices, gpu_ids
from baton_local.progress_bar import ProgressBar
from baton_model_fetch.cache_volume import ModelFolder
from baton_wire.messages.values import Role
from baton_worker.building.engine import build
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig, parse
from baton_worker.errors import ConfigError

MAX_SEQUENCES: Final = {Device.CPU: 64, Device.CUDA: 512}
"""Default batch size of each device; no latency target bounds it."""


def answer_left(options: argparse.Namespace, answers: Answers, left: int) -> Progress:
    """Answer the `left` lines of the input that have no answer yet. Raises StartError, ManifestError,
    UnsupportedError, LocalError."""
    cache = open_cache(options.cache, options.cache_size, os.environ)
    model = _model(options, cache)
    with contextlib.nullcontext() if model.cached is None else cache.hold(model.cached):
        return _run(_config(options, model), options, answers, left)


def _run(config: WorkerConfig, options: argparse.Namespace, answers: Answers, left: int) -> Progress:
    done = answers.done
    try:
        engine = build(config, lambda step, load, seconds: None, alone=True)
    except ConfigError as error:
        raise StartError(str(error)) from error
    lines = (line for line in read_input(options.input) if line.id not in done)
    run = BatchRun(engine, _desk(config.served_name, engine, options), lines, answers)
    began_s = time.monotonic()
    try:
        with ProgressBar("baton", left, " answers") as bar:
            meter = Meter(run.progress, bar, began_s)
            run.run(meter.tick)
            meter.tick()
    except KeyboardInterrupt:
        print(f"baton: stopped after {run.progress.answered:,} answers; the same command resumes", file=sys.stderr)
        raise
    _summary(run.progress, time.monotonic() - began_s, options.json)
    if run.progress.refusals.first:
        print(f"baton: refused first: {run.progress.refusals.first}", file=sys.stderr)
    return run.progress


@dataclass(frozen=True, slots=True)
class _Model:
    """The model on this machine."""

    argument: str
    """Value of the engine's --model flag."""
    served_name: str
    """Model name in requests, unless --served-name gives another."""
    cached: ModelFolder | None = None


def _model(options: argparse.Namespace, cache: ModelCache) -> _Model:
    """The model, downloaded if it is remote. Raises LocalError, UnsupportedError."""
    if options.file:
        written = read_manifest(options.file)
        local = deployment_from_manifest(written, options.file, dict(options.volume), cache, os.environ)
        return _Model(local.argument, written.spec.model.served_name, local.cached)
    if options.model.startswith(RANDOM_SCHEME):
        return _Model(options.model, Path(options.model.removeprefix(RANDOM_SCHEME)).stem)
    model = fetch_local_model(options.model, cache, os.environ, options.latest)
    return _Model(str(model.folder), model.served_name, model.cached)


def _config(options: argparse.Namespace, model: _Model) -> WorkerConfig:
    """The configuration of one engine for prefill and decode, from a manifest's decode worker or from the options."""
    arguments = _manifest_arguments(options, model) if options.file else _plain_arguments(options, model)
    optional = {
        "--max-sequences": options.max_sequences,
        "--max-step-tokens": options.max_step_tokens,
        "--kv-cache-bytes": options.kv_memory,
    }
    given = [f"{flag}={value}" for flag, value in optional.items() if value is not None]
    try:
        # The engine prefills for itself: it receives no KV, and no link needs a key.
        return replace(parse(Role.DECODE, [*arguments, *given, "--listen=127.0.0.1:0"]), role=Role.PREFILL)
    except ConfigError as error:
        raise StartError(str(error)) from error


def _manifest_arguments(options: argparse.Namespace, model: _Model) -> list[str]:
    deployment = read_manifest(options.file)
    computed_on = devices(deployment, options.device, len(gpu_ids(os.environ)))[Role.DECODE]
    site = Site(
        python=sys.executable,
        model_path=model.argument,
        keys_path=".",
        prefill_discovery="",
        decode_discovery="",
        prefill_device=computed_on,
        decode_device=computed_on,
        drain_s=None,
    )
    # The last of two equal flags counts. The engine is one process, so that it has one rank.
    return [*_batch_sizes(computed_on), *worker_spec(deployment, Role.DECODE, site).argv[3:], "--tensor-parallel=1"]


def _plain_arguments(options: argparse.Namespace, model: _Model) -> list[str]:
    computed_on = options.device or Device.CPU
    dtype = options.dtype or ("float32" if computed_on is Device.CPU else "auto")
    context = [f"--max-context-tokens={options.max_context_tokens}"] if options.max_context_tokens else []
    return [
        f"--model={model.argument}",
        f"--served-name={options.served_name or model.served_name}",
        f"--device={computed_on}",
        f"--dtype={dtype}",
        "--keys=.",
        *_batch_sizes(computed_on),
        *context,
    ]


def _batch_sizes(computed_on: Device) -> list[str]:
    blocks = [f"--block-tokens={GPU_BLOCK_TOKENS}"] if computed_on is Device.CUDA else []
    return [f"--max-sequences={MAX_SEQUENCES[computed_on]}", *blocks]


def _desk(served_name: str, engine: EngineParts, options: argparse.Namespace) -> Desk:
    written = None if options.file is None else read_manifest(options.file).spec.model
    names = (served_name, *(() if written is None else written.aliases))
    defaults = not options.no_generation_defaults and (written is None or written.generation_defaults)
    formats = DETECTED_FORMATS if written is None else FormatNames(written.tool_format, written.reasoning_format)
    text = load_text_model(engine.bundle.data, engine.bundle.sha256, formats)
    limits = ModelLimits(engine.limits.max_context_tokens, engine.limits.vocab_size)
    model_hash, most = engine.fingerprint.model_hash, engine.limits.max_choices
    return Desk(text, limits, names, model_hash, most, int(time.time()), defaults, engine.limits.encoding)


class Meter:
    """Shows the progress and the speed of a batch on standard error."""

    def __init__(self, progress: Progress, bar: ProgressBar, began_s: float) -> None:
        self._progress, self._bar, self._began_s = progress, bar, began_s

    def tick(self) -> None:
        """Update the bar; called between steps."""
        progress = self._progress
        rate = progress.output_tokens / max(time.monotonic() - self._began_s, 1e-9)
        self._bar.at(progress.answered, f"{progress.running:,} running, {rate:,.0f} output tokens/s")


def _summary(progress: Progress, seconds: float, as_json: bool) -> None:
    if as_json:
        fields = {
            "answers": progress.answered,
            "refused": progress.refusals.total,
            "prompt_tokens": progress.prompt_tokens,
            "output_tokens": progress.output_tokens,
            "seconds": round(seconds, 3),
            "output_tokens_per_s": round(progress.output_tokens / seconds, 1),
        }
        print(json.dumps(fields))
        return
    rate = progress.output_tokens / seconds
    print(
        f"{progress.answered:,} answers ({progress.refusals.in_words()}) in {seconds:,.1f} s: "
        f"{progress.prompt_tokens:,} prompt tokens, {progress.output_tokens:,} output tokens, {rate:,.0f} a second"
    )
