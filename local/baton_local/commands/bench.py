"""`baton bench`: a load of known arrivals and lengths on an OpenAI endpoint; latencies, and the goodput at targets."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from baton_control.sizing.inputs.workload import Workload
from baton_local.argument_types import integer, positive, some_seconds
from baton_local.client import Answer, open_session
from baton_local.errors import LocalError, StartError
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.record import read_record
from baton_local.fleet.run_dir import base_directory, find_run
from baton_local.load_test.length_distribution import length_distribution
from baton_local.load_test.load_plan import ArrivalKind, Lengths, arrival_times, drawn_load, traced_load
from baton_local.load_test.load_record import LoadRecord, as_json, read_load_record
from baton_local.load_test.load_report import ClientTargets, LoadReport, highest_kept, report
from baton_local.load_test.load_table import as_text
from baton_local.load_test.loaded_server import LoadedServer, counted_words, first_model
from baton_local.load_test.open_loop import open_loop
from baton_local.load_test.prompts import IdPrompts
from baton_local.load_test.rate_search import next_rate
from baton_local.progress_bar import PROGRAM, ProgressBar
from baton_local.shared_options import KEY_VARIABLE
from baton_simulate.trace_files import read_trace

NO_MATPLOTLIB: Final = "--plot needs matplotlib: pip install 'baton-serving[plot]'"


@dataclass
class _Measured:
    """What is known of a run so far."""

    name: str
    """Of the server, in tables and plots."""
    model: str
    reports: list[LoadReport] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton bench`."""
    server = parser.add_argument_group("server")
    server.add_argument(
        "--endpoint", metavar="URL", help="such as http://127.0.0.1:8000 (default: what `baton up` runs)"
    )
    server.add_argument("--name", metavar="X", help="NAME or NAMESPACE.NAME when several run")
    server.add_argument("--as", dest="label", metavar="X", help="what tables and plots call it")
    server.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    server.add_argument(
        "--gpus", type=integer(1, 1 << 16), metavar="N", help="it has: tokens per second and GPU are told"
    )
    server.add_argument("--plain", action="store_true", help="send only fields of OpenAI's: answers may end early")
    server.add_argument("--chat", action="store_true", help="ask /v1/chat/completions: prompts are a user's messages")
    server.add_argument(
        "--ids", type=_ids, metavar="LOW-HIGH", help="prompts of these token ids, exactly as long as asked for"
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--rate", type=positive, nargs="+", metavar="R", help="requests per second; several: one after another"
    )
    load.add_argument(
        "--find", type=_rates, metavar="LOW-HIGH", help="search for the highest rate that keeps each target"
    )
    load.add_argument("--arrivals", type=ArrivalKind, choices=list(ArrivalKind), default=ArrivalKind.POISSON)
    load.add_argument("--duration", type=some_seconds, default=60.0, metavar="TIME", help="of arrivals (default: 60s)")
    load.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="lengths from it, and with no rate its times too: Azure CSV, Mooncake JSONL",
    )
    load.add_argument("--rate-scale", type=positive, default=1.0, metavar="X", help="of a trace's own times")
    load.add_argument("--prompt-tokens", type=length_distribution, default="512", metavar="N|LOW-HIGH|MEDIAN~P99")
    load.add_argument("--output-tokens", type=length_distribution, default="128", metavar="N|LOW-HIGH|MEDIAN~P99")
    load.add_argument("--shared-tokens", type=integer(0, 1 << 20), default=0, metavar="N", help="at a prompt's start")
    load.add_argument("--beginnings", type=integer(1, 1 << 20), default=1, metavar="N", help="different shared starts")
    load.add_argument("--warmup", type=integer(0, 10_000), default=4, metavar="N", help="requests before (default: 4)")
    load.add_argument(
        "--seeds", type=integer(1, 100), default=1, metavar="N", help="runs of each rate; reported together"
    )
    load.add_argument("--seed", type=integer(0, 1 << 30), default=1, metavar="N", help="the first of them")
    load.add_argument(
        "--timeout", type=some_seconds, default=600.0, metavar="TIME", help="of one request (default: 600s)"
    )
    goal = parser.add_argument_group("targets")
    goal.add_argument("--ttft", type=some_seconds, metavar="TIME", help="target, such as 500ms")
    goal.add_argument(
        "--tpot", type=some_seconds, nargs="+", default=[], metavar="TIME", help="targets, such as 10ms 25ms"
    )
    goal.add_argument("--percentile", type=_percentile, default=95.0, metavar="P", help="of requests (default: 95)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="everything, for programs and for --beside")
    output.add_argument("--plot", type=Path, metavar="FILE", help=".png or .svg (needs the extra `plot`)")
    output.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="earlier --json files, in the same table and plot",
    )


def run_bench(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """The command; raises StartError for what cannot be run, LocalError for a server that does not answer."""
    if options.find is None and options.rate is None and options.trace is None:
        raise StartError("give --rate R, --find LOW-HIGH or --trace FILE: when are requests to be sent?")
    if options.find is not None and (options.rate or not (options.ttft or options.tpot)):
        raise StartError("--find: needs --ttft or --tpot, and no --rate")
    if options.chat and options.ids is not None:
        raise StartError("--chat: prompts are texts; not with --ids")
    _check_outputs(options)
    beside = [read_load_record(path) for path in options.beside]
    trace = None if options.trace is None else _trace(options.trace)
    measured = _Measured(options.label or options.endpoint or "", options.model or "")
    failure: KeyboardInterrupt | LocalError | None = None
    try:
        asyncio.run(_run(options, environment, trace, measured))
    except (KeyboardInterrupt, LocalError) as error:
        if not measured.reports:
            raise
        failure = error  # told after what was measured until then
    record = LoadRecord(
        measured.name, measured.model, _load_in_words(options, trace), _seeds(options),
        options.percentile / 100, options.gpus, tuple(measured.reports),
    )  # fmt: skip
    print(as_text([*beside, record]))
    if options.json is not None:
        options.json.write_bytes(as_json(record))
    if options.plot is not None:
        _draw(options.plot, [*beside, record])
    if failure is not None:
        raise failure
    return 0 if all(each.whole for each in measured.reports) else 1


async def _run(
    options: argparse.Namespace, environment: Mapping[str, str], trace: Workload | None, measured: _Measured
) -> None:
    """Fills `measured`, a report a rate."""
    endpoint, key = options.endpoint, environment.get(KEY_VARIABLE)
    if endpoint is None:
        record = read_record(find_run(base_directory(), options.name))
        endpoint, key = record.endpoint, key_for(record, environment)
        measured.name = options.label or record.served_name
    reports = measured.reports
    endpoint = endpoint.rstrip("/").removesuffix("/v1")
    async with open_session(options.timeout, api_key=key) as session:
        model = measured.model = options.model or await first_model(session, endpoint)
        salt, ways = secrets.randbits(62), {"is_plain": options.plain, "is_chat": options.chat}
        prompts = (
            await counted_words(session, endpoint, model, salt, options.beginnings, **ways)
            if options.ids is None
            else IdPrompts(options.ids[0], options.ids[1], salt, options.beginnings)
        )
        server = LoadedServer(session, endpoint, model, prompts, **ways)
        numbers = itertools.count()
        await _warm_up(server, options, trace, next(numbers))
        if options.find is None:
            for rate in options.rate or [None]:
                await _at_rate(server, options, trace, rate, numbers, reports)
            return
        known: dict[float, LoadReport] = {}
        for targets in _targets(options):
            while (
                rate := next_rate({at: _is_kept(one, targets) for at, one in known.items()}, *options.find)
            ) is not None:
                known[rate] = await _at_rate(server, options, trace, rate, numbers, reports)


async def _at_rate(
    server: LoadedServer,
    options: argparse.Namespace,
    trace: Workload | None,
    rate: float | None,
    numbers: Iterator[int],
    reports: list[LoadReport],
) -> LoadReport:
    """All seeds of one rate, added to `reports`; None: the trace's own times. Of a load that is cancelled what had
    ended is added."""
    answers: list[Answer] = []
    duration_s = 0.0

    def of(ended: list[Answer], lasted_s: float, unended: int | None) -> LoadReport:
        return report(ended, lasted_s, _targets(options), options.percentile / 100, options.gpus, rate, unended)

    for seed in _seeds(options):
        workload, lasts_s = _workload(options, trace, rate, seed)
        plan = await asyncio.to_thread(server.planned, workload, next(numbers))
        before = len(answers)
        label = PROGRAM if rate is None else f"{rate:g} req/s"
        with ProgressBar(label, len(plan), "req") as bar:

            def heard(answer: Answer, before: int = before, bar: ProgressBar = bar) -> None:
                answers.append(answer)
                bar.at(len(answers) - before)

            began_s = time.monotonic()
            try:
                await open_loop(server.session, server.endpoint, plan, heard)
            except asyncio.CancelledError:
                ran_s = time.monotonic() - began_s
                if answers:
                    sent = sum(planned.due_s <= ran_s for planned in plan)
                    reports.append(of(answers, duration_s + min(ran_s, lasts_s), before + sent - len(answers)))
                raise
        duration_s += lasts_s
    reports.append(of(answers, duration_s, None))
    return reports[-1]


def _workload(
    options: argparse.Namespace, trace: Workload | None, rate: float | None, seed: int
) -> tuple[Workload, float]:
    """Requests, and how long they arrive: seconds."""
    dice = np.random.default_rng(seed)
    if rate is not None:
        times = arrival_times(options.arrivals, rate, options.duration, dice)
        if not len(times):
            raise StartError(f"--rate {rate:g} over --duration {options.duration:g}s: no request would be sent")
        lengths = Lengths(options.prompt_tokens, options.output_tokens, options.shared_tokens)
        load = drawn_load(times, lengths, dice) if trace is None else traced_load(times, trace, dice)
        return load, options.duration
    assert trace is not None
    part = trace.between(0.0, options.duration)
    if options.rate_scale != 1.0:
        part = part.rate_scaled(options.rate_scale, dice)
    if not len(part):
        raise StartError(f"--trace over --duration {options.duration:g}s: no request would be sent")
    return part, min(options.duration, trace.duration_s) or options.duration  # all of it may come at once


async def _warm_up(server: LoadedServer, options: argparse.Namespace, trace: Workload | None, number: int) -> None:
    """A few requests of the load's own lengths, all at once. Raises AnswerError: nothing is measured on a server that
    refuses."""
    if not options.warmup:
        return
    times = np.zeros(options.warmup)
    dice = np.random.default_rng(options.seed)
    lengths = Lengths(options.prompt_tokens, options.output_tokens, options.shared_tokens)
    load = drawn_load(times, lengths, dice) if trace is None else traced_load(times, trace, dice)
    for answer in await open_loop(server.session, server.endpoint, server.planned(load, number)):
        answer.checked()


def _targets(options: argparse.Namespace) -> list[ClientTargets]:
    if not options.tpot and options.ttft is None:
        return []
    return [ClientTargets(options.ttft, tpot) for tpot in options.tpot or [None]]


def _is_kept(one: LoadReport, targets: ClientTargets) -> bool:
    return highest_kept([one], targets) is not None


def _seeds(options: argparse.Namespace) -> tuple[int, ...]:
    return tuple(range(options.seed, options.seed + options.seeds))


def _load_in_words(options: argparse.Namespace, trace: Workload | None) -> str:
    lengths = (
        f"{options.prompt_tokens} in, {options.output_tokens} out" if trace is None else f"lengths of {trace.name}"
    )
    is_own = options.rate is None and options.find is None
    return f"{'own times' if is_own else options.arrivals.value}, {lengths}, {options.duration:g} s"


def _trace(path: Path) -> Workload:
    try:
        return read_trace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--trace: {path} cannot be read: {error}") from error


def _check_outputs(options: argparse.Namespace) -> None:
    """Before anything is measured that could not be written then. Raises StartError."""
    if options.plot is not None and options.plot.suffix not in {".png", ".svg"}:
        raise StartError(f"--plot: {options.plot.name} is not allowed: must end in .png or .svg")
    if options.plot is not None and find_spec("matplotlib") is None:
        raise StartError(NO_MATPLOTLIB)
    for flag, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            raise StartError(f"{flag}: {path} cannot be written")


def _draw(path: Path, records: Sequence[LoadRecord]) -> None:
    try:
        from baton_local.load_test.load_plot import draw_loads
    except ImportError as error:
        raise StartError(NO_MATPLOTLIB) from error
    draw_loads(path, {record.name: record.reports for record in records}, records[-1].share)


def _rates(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    found = positive(low), positive(high)
    if found[0] >= found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: the first rate must be under the second")
    return found


def _ids(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 8 for part in (low, high)) or int(low) > int(high):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be LOW-HIGH, two token ids")
    return int(low), int(high)


def _percentile(text: str) -> float:
    found = positive(text)
    if not 50.0 <= found < 100.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be from 50 to under 100")
    return found
