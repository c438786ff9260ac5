"""`baton bench`: sends a load of known arrivals and lengths to an OpenAI endpoint; reports latencies and goodput."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer, open_session
from baton_local.commands.bench_options import fill_defaults
from baton_local.commands.session_bench import SessionMeasurement
from baton_local.commands.session_options import SessionSource, loop_limits, session_source
from baton_local.errors import LocalError, StartError
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.ready_record import ready_record
from baton_local.load_test.load_plan import Lengths, arrival_times, drawn_load, traced_load
from baton_local.load_test.load_record import LoadRecord, as_json, read_load_record
from baton_local.load_test.load_report import ClientTargets, LoadReport, highest_kept, report
from baton_local.load_test.load_table import as_text
from baton_local.load_test.loaded_server import LoadedServer, counted_words, first_model
from baton_local.load_test.open_loop import open_loop
from baton_local.load_test.prompts import IdPrompts
from baton_local.load_test.rate_search import next_rate
from baton_local.load_test.session_report import session_figures
from baton_local.progress_bar import PROGRAM, ProgressBar
from baton_local.shared_options import KEY_VARIABLE
from baton_simulate.trace_files import read_trace

NO_MATPLOTLIB: Final = "--plot needs matplotlib: pip install 'baton-serving[plot]'"


@dataclass
class _Measured:
    """The results of a run so far."""

    name: str
    """Name of the server in tables and plots."""
    model: str
    reports: list[LoadReport] = field(default_factory=list)


def run_bench(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    """Run `baton bench`. Raises StartError for a load that cannot be sent, LocalError for a server that does not
    answer."""
    sessions = None if options.sessions is None else _sessions(options)
    if options.find is None and options.rate is None and options.trace is None and sessions is None:
        raise StartError("give --rate R, --find LOW-HIGH, --trace FILE or --sessions, which say when requests are sent")
    if options.find is not None and (options.rate or not (options.ttft or options.tpot)):
        raise StartError("--find: needs --ttft or --tpot, and no --rate")
    if options.chat and options.ids is not None:
        raise StartError("--chat: prompts are texts; not with --ids")
    _check_outputs(options)
    fill_defaults(options)
    beside = [read_load_record(path) for path in options.beside]
    trace = None if options.trace is None else _trace(options.trace)
    measured = _Measured(options.label or options.endpoint or "", options.served_name or "")
    failure: KeyboardInterrupt | LocalError | None = None
    try:
        asyncio.run(_run(options, environment, sessions or trace, measured))
    except (KeyboardInterrupt, LocalError) as error:
        if not measured.reports:
            raise
        failure = error  # raised once the results so far are reported
    record = LoadRecord(
        measured.name, measured.model, _describe_load(options, sessions or trace), _seeds(options),
        options.percentile / 100, options.accelerators, tuple(measured.reports),
    )  # fmt: skip
    print(as_text([*beside, record]))
    if options.json is not None:
        options.json.write_bytes(as_json(record))
    if options.plot is not None:
        _draw(options.plot, [*beside, record])
    if failure is not None:
        raise failure
    return 0 if all(report.whole for report in measured.reports) else 1


def _sessions(options: argparse.Namespace) -> SessionSource:
    for flag in ("rate", "find", "trace"):
        if getattr(options, flag) is not None:
            raise StartError(f"--{flag}: not allowed with --sessions, which say when requests are sent")
    return session_source(options)


async def _run(
    options: argparse.Namespace,
    environment: Mapping[str, str],
    load: SessionSource | Workload | None,
    measured: _Measured,
) -> None:
    """Send the load; adds one report per rate to `measured`. `load`: None draws requests of the options' lengths."""
    endpoint, key = options.endpoint, environment.get(KEY_VARIABLE)
    if endpoint is None:
        record = ready_record(options.name)
        endpoint, key = record.endpoint, key_for(record, environment)
        measured.name = options.label or record.served_name
    reports = measured.reports
    endpoint = endpoint.rstrip("/").removesuffix("/v1")
    async with open_session(options.timeout, api_key=key) as session:
        model = measured.model = options.served_name or await first_model(session, endpoint)
        salt, ways = secrets.randbits(62), {"is_plain": options.plain, "is_chat": options.chat}
        prompts = (
            await counted_words(session, endpoint, model, salt, options.beginnings or 1, **ways)
            if options.ids is None
            else IdPrompts(options.ids[0], options.ids[1], salt, options.beginnings or 1)
        )
        server = LoadedServer(session, endpoint, model, prompts, **ways)
        numbers = itertools.count()
        if isinstance(load, SessionSource):
            await _run_sessions(server, options, load, numbers, reports)
            return
        trace = load
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


async def _run_sessions(
    server: LoadedServer,
    options: argparse.Namespace,
    source: SessionSource,
    numbers: Iterator[int],
    reports: list[LoadReport],
) -> None:
    """Run all seeds of the sessions and add one report; cancelled sessions are reported as far as they went."""
    measurement = SessionMeasurement(server, loop_limits(options), options.session_ids)
    planned = 0
    try:
        for seed in _seeds(options):
            load = await asyncio.to_thread(source.load, seed)
            planned += len(load.turns)
            await measurement.run(load, next(numbers))
        unended = None
    except asyncio.CancelledError:
        unended = planned - len(measurement.answers)
        raise
    finally:
        if measurement.answers:
            figures = session_figures(measurement.runs)
            made = report(
                *(measurement.answers, measurement.duration_s, _targets(options), options.percentile / 100),
                *(options.accelerators, None, unended),
            )
            reports.append(replace(made, sessions=figures))


async def _at_rate(
    server: LoadedServer,
    options: argparse.Namespace,
    trace: Workload | None,
    rate: float | None,
    numbers: Iterator[int],
    reports: list[LoadReport],
) -> LoadReport:
    """Run all seeds of one rate and add their report to `reports`. `rate` None: the trace's own arrival times. A load
    that is cancelled is reported as far as it went."""
    answers: list[Answer] = []
    duration_s = 0.0

    def report_of(ended: list[Answer], lasted_s: float, unended: int | None) -> LoadReport:
        return report(ended, lasted_s, _targets(options), options.percentile / 100, options.accelerators, rate, unended)

    for seed in _seeds(options):
        workload, lasts_s = _workload(options, trace, rate, seed)
        plan = await asyncio.to_thread(server.plan, workload, next(numbers))
        before = len(answers)
        label = PROGRAM if rate is None else f"{rate:g} req/s"
        with ProgressBar(label, len(plan), " req") as bar:

            def on_answer(answer: Answer, before: int = before, bar: ProgressBar = bar) -> None:
                answers.append(answer)
                bar.at(len(answers) - before)

            began_s = time.monotonic()
            try:
                await open_loop(server.session, server.endpoint, plan, on_answer)
            except asyncio.CancelledError:
                ran_s = time.monotonic() - began_s
                if answers:
                    sent = sum(planned.due_s <= ran_s for planned in plan)
                    reports.append(report_of(answers, duration_s + min(ran_s, lasts_s), before + sent - len(answers)))
                raise
        duration_s += lasts_s
    reports.append(report_of(answers, duration_s, None))
    return reports[-1]


def _workload(
    options: argparse.Namespace, trace: Workload | None, rate: float | None, seed: int
) -> tuple[Workload, float]:
    """The requests of one run, and how long they arrive, in seconds."""
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
    return part, min(options.duration, trace.duration_s) or options.duration  # all requests may arrive at once


async def _warm_up(server: LoadedServer, options: argparse.Namespace, trace: Workload | None, number: int) -> None:
    """Send a few requests of the load's own lengths, all at once. Raises AnswerError: a server that refuses them is not
    measured."""
    if not options.warmup:
        return
    times = np.zeros(options.warmup)
    dice = np.random.default_rng(options.seed)
    lengths = Lengths(options.prompt_tokens, options.output_tokens, options.shared_tokens)
    load = drawn_load(times, lengths, dice) if trace is None else traced_load(times, trace, dice)
    for answer in await open_loop(server.session, server.endpoint, server.plan(load, number)):
        answer.checked()


def _targets(options: argparse.Namespace) -> list[ClientTargets]:
    if not options.tpot and options.ttft is None:
        return []
    return [ClientTargets(options.ttft, tpot) for tpot in options.tpot or [None]]


def _is_kept(one: LoadReport, targets: ClientTargets) -> bool:
    return highest_kept([one], targets) is not None


def _seeds(options: argparse.Namespace) -> tuple[int, ...]:
    return tuple(range(options.seed, options.seed + options.seeds))


def _describe_load(options: argparse.Namespace, trace: SessionSource | Workload | None) -> str:
    if isinstance(trace, SessionSource):
        return f"sessions: {trace.name}"
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
    """Check before measuring that the outputs can be written. Raises StartError."""
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
