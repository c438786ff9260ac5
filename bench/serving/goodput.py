"""Goodput of several GPUs: what of an open load keeps TTFT and TPOT targets, by where prompts are computed.

    python -m bench goodput --trace azure_llm_2023_conv.csv conv:auto:10:34 conv:always:10:30 …

A point is MIX:MODE:TPOT_MS:RATE; modes and rates may be several, as in `conv:auto,never,always:10:18,22,26`. One
prefill and one decode worker have a GPU each. `never` is served by two decode workers, the second of which shares the
prefill worker's GPU and idles otherwise. So all start once. The prefill worker may keep answers, as by default. Each
point has a gateway of its own with that mode and target. Clients are processes of their own and send when a request is
due. With `--one-gpu` a single decode worker serves, and modes are `never`. `--pools 2+2` starts more workers, each on a
GPU of its own; `--gateways 1 2` measures each point with one gateway, then with two that clients take in turn.
`--shape` and `--weights` take another model: `--shape gpt-oss-120b --weights mxfp4 --kv-gib 40 5000-250:auto:25:5.5`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from bench.engine.gpu_model import SHAPES, WEIGHTS
from bench.machine import this_machine
from bench.results import FOLDER, Cell, publish, write
from bench.serving.load import offer_load
from bench.serving.mixes import Point, Served, shares
from bench.serving.offline import model_folder
from bench.serving.placed_workers import (
    GIB,
    SAMPLE_S,
    PlacedWorkers,
    compiled_here,
    increase,
    sample_states,
    scrape_routes,
    scrape_series,
    startup_stages,
    transports,
)
from bench.serving.pools import ONE_EACH, Pools, worker_letters
from bench.serving.predicted_worker import StepTimes, times_of_model
from bench.serving.traced_worker import FLUSH_S

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer
from baton_testing.processes.deployment import Shape

MODEL: Final = "goodput"
CLIENTS: Final = 4
PATIENCE_S: Final = 30.0
WARM_RATE, WARM_S = 8.0, 2.0
"""The load that a fresh gateway sees before it is measured: it knows no step times yet."""
AROUND_S: Final = 20.0
"""Time that a point takes besides its arrivals: a gateway's start, the warm load, and the last answers."""
COLUMNS: Final = (
    *("mix", "mode", "target", "req/s", "requests", "failed", "% at 10", "% at 15", "% at 25", "% TTFT"),
    *(
        "TTFT p50",
        "TTFT p95",
        "TTFT p99",
        "TPOT p50",
        "TPOT p95",
        "TPOT p99",
        "1→2 p50",
        "1→2 p95",
        "local %",
        "kept %",
    ),
    *("P busy %", "D busy %", "D step ms", "D rows", "D rows max", "P queue", "P queue max", "D queue", "D queue max"),
    *("gateway CPU %", "client late ms"),
)
MOST_TOKENS: Final = 20_480
"""Of a prompt and its answer."""
BESIDE_KV_GIB: Final = 28
"""A worker's weights, graphs and libraries. 20 left too little on a GPU of 80 GB once prompts ran from graphs."""


def serve_requests(url: str, model: str, workload: Workload, seed: int, salt: int) -> list[tuple[Served, float, str]]:
    """One client's requests: what became of each, and how late it was sent. Runs in a process of its own."""
    answers: list[Answer] = []
    began = time.monotonic()
    asyncio.run(offer_load(url, model, workload, PATIENCE_S + workload.duration_s, answers.append, seed, salt))
    outcomes = []
    for answer in answers:
        second_s = answer.times_s[1] - answer.times_s[0] if len(answer.times_s) > 1 else float("inf")
        served = Served(answer.due_s - began, answer.ttft_s, answer.tpot_s, second_s)
        outcomes.append((served, answer.sent_s - answer.due_s, answer.failure))
    return outcomes


def dealt(workload: Workload, clients: int) -> list[Workload]:
    """Every n-th request to one client: all begin at the same time."""
    return [
        Workload(
            workload.arrival_s[first::clients],
            workload.prompt_tokens[first::clients],
            workload.output_tokens[first::clients],
            workload.cached_tokens[first::clients],
        )
        for first in range(clients)
    ]


def offer(
    urls: Sequence[str], model: str, clients: ProcessPoolExecutor, workload: Workload, seed: int, salt: int
) -> list[tuple[Served, float, str]]:
    """The outcome of each request, as of `serve_requests`. Several servers take turns. `salt`: as for `offer_load`."""
    tasks = [
        clients.submit(serve_requests, urls[place % len(urls)], model, part, 100 * seed + place, salt)
        for place, part in enumerate(dealt(workload, CLIENTS))
    ]
    return [answer for task in tasks for answer in task.result()]


def client_figures(point: Point, mode: str, outcomes: Sequence[tuple[Served, float, str]]) -> dict[str, Cell]:
    """A point's figures as its clients saw them. Times are ms."""
    row: dict[str, Cell] = {"mix": point.mix, "mode": mode, "target": point.tpot_ms, "req/s": point.rate}
    row |= shares([served for served, _, _ in outcomes])
    row["client late ms"] = round(1e3 * float(np.percentile([late_s for _, late_s, _ in outcomes], 99)), 2)
    if failures := sorted({failure for _, _, failure in outcomes if failure}):
        row["failures"] = ", ".join(failures)[:200]
    return row


def measure(
    service: PlacedWorkers,
    clients: ProcessPoolExecutor,
    point: Point,
    workload: Workload,
    seed: int,
    salt: int,
    times: StepTimes | None,
) -> dict[str, Cell]:
    """The point's row. Times are ms. `times`: as predicted for this model; None: nothing is predicted for it."""
    shown = service.shown
    letters = worker_letters([worker.role for worker in shown])
    workers = dict(zip(letters, shown, strict=True))
    before = {letter: scrape_series(worker) for letter, worker in workers.items()}
    cpu_s, began = service.gateway.cpu_s(), time.monotonic()
    with sample_states(workers) as states:
        outcomes = offer(service.urls, MODEL, clients, workload, seed, salt)
    wall_s = time.monotonic() - began
    row = client_figures(point, point.mode, outcomes)
    row["gateways"], row["gateway CPU %"] = (
        len(service.urls),
        round(100 * (service.gateway.cpu_s() - cpu_s) / wall_s, 1),
    )
    row["wall s"] = round(wall_s, 1)
    for letter, worker in workers.items():
        after = scrape_series(worker)
        steps = increase(before[letter], after, "baton_step_seconds_count")
        step_s = increase(before[letter], after, "baton_step_seconds_sum")
        inside = states[letter][int(3 / SAMPLE_S) : max(1, int(workload.duration_s / SAMPLE_S))]
        queue = [state["waiting_tokens"] for state in inside] or [0]
        rows = [state["running"] for state in inside] or [0]
        row[f"{letter} busy %"] = round(100 * step_s / wall_s, 1)
        row[f"{letter} step ms"], row[f"{letter} steps"] = round(1e3 * step_s / max(1, steps), 2), round(steps)
        row[f"{letter} queue"], row[f"{letter} queue max"] = round(float(np.mean(queue))), max(queue)
        row[f"{letter} rows"], row[f"{letter} rows max"] = round(float(np.mean(rows)), 1), max(rows)
        row[f"{letter} waiting max"] = max((state["waiting"] for state in inside), default=0)
        row[f"{letter} preemptions"] = increase(before[letter], after, "baton_preemptions_total")
    time.sleep(FLUSH_S)
    traced = service.traced_figures(began, began + wall_s, times)
    row |= {f"{name} {figure}": value for name, figures in traced.items() for figure, value in figures.items()}
    return row | {"transport": transports(service)} | scrape_routes(service)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="+", type=Point.several, metavar="MIX:MODE:TPOT_MS:RATE")
    parser.add_argument("--trace", type=Path, required=True, help="of Azure's conversations, for their lengths")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals a point (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--transport", choices=("tcp", "ucx"), default="ucx")
    parser.add_argument("--max-sequences", type=int, default=256)
    parser.add_argument("--gateway-processes", type=int, default=1)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1], metavar="N", help="of each point, in turn")
    parser.add_argument("--pools", type=Pools.parse, default=ONE_EACH, metavar="P+D", help="workers (default 1+1)")
    parser.add_argument("--gpus", nargs="+", metavar="GPU", help="a worker's each (default: the first ones)")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="Llama-3.1-8B")
    parser.add_argument("--weights", choices=sorted(WEIGHTS), default="bf16")
    parser.add_argument(
        "--traced", action="store_true", help="workers write down their steps: where a token's time goes"
    )
    parser.add_argument("--kv-gib", type=int, help="a worker's room for KV (default: what the weights of 8B leave)")
    parser.add_argument("--one-gpu", action="store_true", help="one decode worker, on the first GPU")
    parser.add_argument("--out", type=Path, default=FOLDER / "goodput.json")
    parser.add_argument("--most-s", type=float, default=float("inf"), help="begin no point that would end later")
    options = parser.parse_args()
    points = [point for several in options.points for point in several]
    if options.one_gpu and any(point.mode != "never" for point in points):
        parser.error("--one-gpu: there is no worker to hand over to; each point's mode has to be never")
    is_never = any(point.mode == "never" for point in points)
    if is_never and options.pools != ONE_EACH:
        parser.error("--pools: mode never has two decode workers; allowed with it: 1+1")
    sequences = (f"--max-sequences={options.max_sequences}",)
    is_gpu = torch.cuda.is_available()
    worker_flags = ("--dtype=bfloat16", "--device=cuda") if is_gpu else ("--dtype=float32", "--device=cpu")
    rows: list[dict[str, Cell]] = []
    notes = [f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if is_gpu else "CPU: a trial of the bench"]
    notes.append(f"{options.seconds:g} s of arrivals a point, seeds {options.seeds}, {options.transport}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = {**SHAPES[options.shape], **WEIGHTS[options.weights], "max_position_embeddings": MOST_TOKENS}
        shape = Shape(
            prefill=0 if options.one_gpu else options.pools.prefill,
            decode=1 if options.one_gpu else options.pools.decode + is_never,
            gateway_processes=options.gateway_processes,
            model=model_folder(config, folder) if is_gpu else Shape().model,
            served_name=MODEL,
            worker_flags=(*worker_flags, f"--transport={options.transport}", "--quantization=auto"),
            prefill_flags=("--keep-answers", *sequences),
            decode_flags=sequences,
        )
        gpu_of = _gpu_of(options.pools, options.gpus, is_one=options.one_gpu, is_never=is_never)
        if not is_gpu:
            kv_gib = dict.fromkeys(gpu_of, 1)
        elif options.kv_gib is not None:
            kv_gib = dict.fromkeys(gpu_of, options.kv_gib)
        else:
            kv_gib = _kv_gib(gpu_of)
        times = times_of_model(options.shape, options.weights) if is_gpu else None
        context = multiprocessing.get_context("spawn")
        began = time.monotonic()
        with (
            ProcessPoolExecutor(CLIENTS, mp_context=context) as clients,
            PlacedWorkers(folder / "run", shape, gpu_of, kv_gib, traced=options.traced) as service,
        ):
            notes.append(f"ready after {time.monotonic() - began:.1f} s")
            notes += [
                f"{worker.child.name}: {startup_stages(worker)}; compiled: {compiled_here(worker) or 'nothing'}"
                for worker in service.workers
            ]
            print("\n".join(notes), flush=True)
            turns = itertools.product(enumerate(points), options.seeds, options.gateways)
            for (number, point), seed, service.gateways in turns:
                if time.monotonic() - began + options.seconds + AROUND_S > options.most_s:
                    notes.append(f"not begun, for --most-s {options.most_s:g}: {point} and what follows")
                    print(notes[-1], flush=True)
                    break
                service.serve(point, ())
                warm = replace(point, rate=min(WARM_RATE, point.rate))
                salt = number + len(points) * options.gateways.index(service.gateways)
                offer(service.urls, MODEL, clients, warm.workload(options.trace, WARM_S, 0), 0, salt)
                workload = point.workload(options.trace, options.seconds, seed)
                rows.append(measure(service, clients, point, workload, seed, salt, times) | {"seed": seed})
                print(json.dumps(rows[-1]), flush=True)
                write(options.out, {"notes": notes, "rows": rows})
    publish("goodput", this_machine(), notes, COLUMNS, rows)


def _gpu_of(pools: Pools, gpus: Sequence[str] | None, *, is_one: bool, is_never: bool) -> dict[str, str]:
    """The GPU of each worker. Mode `never` has a second decode worker next to the prefill worker."""
    gpus = gpus or [str(number) for number in range(pools.workers)]
    if is_one:
        return {"decode-0": gpus[0]}
    gpu_of = pools.gpu_of("auto", gpus)
    return {**gpu_of, "decode-1": gpu_of["prefill-0"]} if is_never else gpu_of


def _kv_gib(gpu_of: Mapping[str, str]) -> dict[str, int]:
    """GiB by worker that its GPU has besides weights, graphs and libraries. Two may share a GPU."""
    free = torch.cuda.get_device_properties(0).total_memory // GIB - BESIDE_KV_GIB
    shared = (free - BESIDE_KV_GIB) // 2
    gpus = list(gpu_of.values())
    return {name: shared if gpus.count(gpu) > 1 else free for name, gpu in gpu_of.items()}


if __name__ == "__main__":
    main()
