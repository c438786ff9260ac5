"""Goodput of two GPUs: what of an open load keeps TTFT and TPOT targets, by where prompts are computed.

    python -m bench goodput --trace azure_llm_2023_conv.csv conv:auto:10:34 conv:always:10:30 …

A point is MIX:MODE:TPOT_MS:RATE; modes and rates may be several, as in `conv:auto,never,always:10:18,22,26`. One
prefill and one decode worker have a GPU each. `never` is served by two decode workers, the second of which shares the
prefill worker's GPU and idles otherwise. So all start once. The prefill worker may keep answers, as by default. Each
point has a gateway of its own with that mode and target. Clients are processes of their own and send when a request is
due. With `--one-gpu` a single decode worker serves, and modes are `never`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from bench.engine.gpu import LLAMA_8B
from bench.machine import this_machine
from bench.results import FOLDER, Cell, publish, write
from bench.serving.load import offer_load
from bench.serving.mixes import Point, Served, shares
from bench.serving.offline import model_folder

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer
from baton_testing.processes.child_process import Child, get_text
from baton_testing.processes.deployment import Deployment, Shape, Worker

MODEL: Final = "goodput"
CLIENTS: Final = 4
PATIENCE_S: Final = 30.0
SAMPLE_S: Final = 0.2
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
GPU_OF: Final = {"prefill-0": "0", "decode-0": "1", "decode-1": "0"}
ONE_GPU: Final = {"decode-0": "0"}
GIB: Final = 1 << 30
BESIDE_KV_GIB: Final = 28
"""A worker's weights, graphs and libraries. 20 left too little on a GPU of 80 GB once prompts ran from graphs."""
STAGE: Final = re.compile(r'^baton_startup_seconds\{.*stage="([^"]+)".*\} (\S+)$', re.MULTILINE)
COMPILED: Final = re.compile(r"compiled here: (.+)$|kernel (\w+) was compiled while serving", re.MULTILINE)
FEW: Final = 4
SERIES: Final = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


class PlacedWorkers(Deployment):
    """Each worker on the GPU that it is given; a point's gateway sees those that its mode uses."""

    def __init__(self, folder: Path, shape: Shape, gpu_of: Mapping[str, str], kv_gib: Mapping[str, int]) -> None:
        """`gpu_of`: each worker's GPU; `kv_gib`: its room for KV."""
        super().__init__(folder, shape)
        self._gpu_of, self._kv_gib = gpu_of, kv_gib
        self._shown: frozenset[str] = frozenset(gpu_of)
        self._gateways = 0

    def launch(self, name: str, argv: Sequence[str], extra: Mapping[str, str] | None) -> Child:
        visible = {"CUDA_VISIBLE_DEVICES": self._gpu_of[name]} if name in self._gpu_of else {}
        flags = (f"--kv-cache-bytes={self._kv_gib[name] * GIB}",) if name in self._kv_gib else ()
        return super().launch(name, [*argv, *flags], {**(extra or {}), **visible})

    def publish(self) -> None:
        everybody = self.workers
        self.workers = [worker for worker in everybody if worker.child.name in self._shown]
        try:
            super().publish()
        finally:
            self.workers = everybody

    def serve(self, point: Point, flags: Sequence[str]) -> None:
        """A fresh gateway for this point, in front of the workers that its mode uses."""
        self.gateway.stop()
        self._shown = frozenset(("decode-0", "decode-1" if point.mode == "never" else "prefill-0"))
        self.publish()
        target = (f"--disaggregation={point.mode}", f"--slo-tpot-s={point.tpot_ms / 1e3}")
        self.shape = replace(self.shape, gateway_flags=(*target, *flags))
        (self.folder / "gateway.json").unlink(missing_ok=True)
        self._start_gateway()
        self.await_routable()

    def worker(self, name: str) -> Worker | None:
        return next((worker for worker in self.workers if worker.child.name == name), None)


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


def scrape_series(worker: Worker) -> dict[str, float]:
    """The worker's series, labels and all."""
    return {name + labels: float(value) for name, labels, value in SERIES.findall(worker.metrics())}


def increase(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """The increase of all series of this name together."""
    return sum(value - before.get(key, 0.0) for key, value in after.items() if key.partition("{")[0] == name)


@contextmanager
def sample_states(workers: Mapping[str, Worker]) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Samples of each worker's `/state`, taken until the context ends."""
    states: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            for name, worker in workers.items():
                if (state := worker.state()) is not None:
                    states[name].append(state)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield states
    finally:
        over.set()
        thread.join()


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
    service: PlacedWorkers, clients: ProcessPoolExecutor, point: Point, workload: Workload, seed: int, salt: int
) -> dict[str, Cell]:
    """The point's row. Times are ms."""
    letters = {"P": "decode-1" if point.mode == "never" else "prefill-0", "D": "decode-0"}
    workers = {letter: there for letter, name in letters.items() if (there := service.worker(name)) is not None}
    before = {letter: scrape_series(worker) for letter, worker in workers.items()}
    cpu_s, began = service.gateway.cpu_s(), time.monotonic()
    with sample_states(workers) as states:
        outcomes = offer([service.base_url], MODEL, clients, workload, seed, salt)
    wall_s = time.monotonic() - began
    row = client_figures(point, point.mode, outcomes)
    row["gateway CPU %"] = round(100 * (service.gateway.cpu_s() - cpu_s) / wall_s, 1)
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
    return row | scrape_routes(service)


def scrape_routes(service: PlacedWorkers) -> dict[str, Cell]:
    """The shares of this point's prompts computed at the decode worker and of answers kept by the prefill worker, by
    the gateway's own count; empty if no admin port was given."""
    if service.admin_port is None:
        return {}
    page = get_text(f"http://127.0.0.1:{service.admin_port}/metrics")
    routes = {
        labels: float(value) for name, labels, value in SERIES.findall(page) if name == "baton_gateway_routed_total"
    }
    whole = sum(routes.values())
    if not whole:
        return {}
    return {
        f"{kind} %": round(100 * sum(value for labels, value in routes.items() if kind in labels) / whole, 1)
        for kind in ("local", "kept")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="+", type=Point.several, metavar="MIX:MODE:TPOT_MS:RATE")
    parser.add_argument("--trace", type=Path, required=True, help="of Azure's conversations, for their lengths")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals a point (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--transport", choices=("tcp", "ucx"), default="ucx")
    parser.add_argument("--max-sequences", type=int, default=256)
    parser.add_argument("--gateway-processes", type=int, default=1)
    parser.add_argument("--one-gpu", action="store_true", help="one decode worker, on the first GPU")
    parser.add_argument("--out", type=Path, default=FOLDER / "goodput.json")
    parser.add_argument("--most-s", type=float, default=float("inf"), help="begin no point that would end later")
    options = parser.parse_args()
    points = [point for several in options.points for point in several]
    if options.one_gpu and any(point.mode != "never" for point in points):
        parser.error("--one-gpu: there is no worker to hand over to; each point's mode has to be never")
    sequences = (f"--max-sequences={options.max_sequences}",)
    is_gpu = torch.cuda.is_available()
    worker_flags = ("--dtype=bfloat16", "--device=cuda") if is_gpu else ("--dtype=float32", "--device=cpu")
    rows: list[dict[str, Cell]] = []
    notes = [f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if is_gpu else "CPU: a trial of the bench"]
    notes.append(f"{options.seconds:g} s of arrivals a point, seeds {options.seeds}, {options.transport}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shape = Shape(
            prefill=0 if options.one_gpu else 1,
            decode=1 if options.one_gpu else 1 + any(point.mode == "never" for point in points),
            gateway_processes=options.gateway_processes,
            model=model_folder({**LLAMA_8B, "max_position_embeddings": 20480}, folder) if is_gpu else Shape().model,
            served_name=MODEL,
            worker_flags=(*worker_flags, f"--transport={options.transport}"),
            prefill_flags=("--keep-answers", *sequences),
            decode_flags=sequences,
        )
        kv_gib = _kv_gib(shape) if is_gpu else dict.fromkeys(GPU_OF, 1)
        context = multiprocessing.get_context("spawn")
        began = time.monotonic()
        with (
            ProcessPoolExecutor(CLIENTS, mp_context=context) as clients,
            PlacedWorkers(folder / "run", shape, ONE_GPU if options.one_gpu else GPU_OF, kv_gib) as service,
        ):
            notes.append(f"ready after {time.monotonic() - began:.1f} s")
            notes += [
                f"{worker.child.name}: {_stages(worker)}; compiled: {compiled_here(worker) or 'nothing'}"
                for worker in service.workers
            ]
            print("\n".join(notes), flush=True)
            for (number, point), seed in itertools.product(enumerate(points), options.seeds):
                if time.monotonic() - began + options.seconds + AROUND_S > options.most_s:
                    notes.append(f"not begun, for --most-s {options.most_s:g}: {point} and what follows")
                    print(notes[-1], flush=True)
                    break
                service.serve(point, ())
                warm = replace(point, rate=min(WARM_RATE, point.rate))
                offer([service.base_url], MODEL, clients, warm.workload(options.trace, WARM_S, 0), 0, number)
                workload = point.workload(options.trace, options.seconds, seed)
                rows.append(measure(service, clients, point, workload, seed, number) | {"seed": seed})
                print(json.dumps(rows[-1]), flush=True)
                write(options.out, {"notes": notes, "rows": rows})
    publish("goodput", this_machine(), notes, COLUMNS, rows)


def _kv_gib(shape: Shape) -> dict[str, int]:
    """GiB by worker that its GPU has besides weights, graphs and libraries. Two share the first where `never` runs."""
    free = torch.cuda.get_device_properties(0).total_memory // GIB - BESIDE_KV_GIB
    first = (free - BESIDE_KV_GIB) // 2 if shape.decode > 1 else free
    return {"prefill-0": first, "decode-0": free, "decode-1": first}


def compiled_here(worker: Worker) -> str:
    """Kernels that this worker was the first to compile, by name if they are few."""
    compilations = COMPILED.findall(worker.child.output())
    named = sorted({kernel for before, later in compilations for kernel in (*before.split(", "), later) if kernel})
    return ", ".join(named) if len(named) <= FEW else f"{len(named)} kernels"


def _stages(worker: Worker) -> str:
    """Parts of its start in seconds."""
    stages = STAGE.findall(worker.metrics())
    return ", ".join(f"{stage} {float(seconds):.1f} s" for stage, seconds in stages)


if __name__ == "__main__":
    main()
