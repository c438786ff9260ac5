"""Sessions with long contexts on several GPUs, measured: what keeps both targets, by mode.

    python -m bench gpu_sessions --load two-gpus 602 605 --mode never always auto

The loads, targets and figures are those of `sessions_predicted`, which predicts this bench: one prefill and one decode
worker have a GPU each, `never` has two decode workers. Llama-3.1-8B's shape with random bf16 weights, token ids in, one
closed loop of clients. Each mode has a gateway of its own; no two loads share a prompt, so caches are cold.
`--pools 2+2 --gateways 1 2` has four GPUs, and one gateway, then two. Workers write down their steps
(`traced_worker`), so that each row says where a token's time went: on the device, which is next to what the prediction
has for the same steps, or on the host between them.

With `--paced` workers compute nothing and take an H200's times, so that gateways, schedulers and hand-overs can be
watched under this load on a machine without GPUs. `--slowed 6` makes these times and the targets six times as long and
divides what clients saw by six: then a machine that is busy with other work adds little to a step.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.pool
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import torch
from bench.engine.gpu import LLAMA_8B
from bench.machine import this_machine
from bench.results import FOLDER, Cell, publish, write
from bench.serving.mixes import Point
from bench.serving.offline import model_folder
from bench.serving.placed_workers import PlacedWorkers, scrape_routes, transports
from bench.serving.sessions_predicted import (
    LONG_CONTEXTS,
    MODES,
    MOST_TOKENS,
    TurnTimes,
    load_named,
    load_parser,
    turn_figures,
    two_gpus,
)
from bench.serving.traced_worker import FLUSH_S

from baton_local.client import Answer, AnswerEnd, send
from baton_local.load_test.closed_loop import TurnAnswer, closed_loop
from baton_local.load_test.loaded_server import LoadedServer
from baton_local.load_test.prompts import IdPrompts
from baton_local.load_test.session_prompts import IdSegments, SessionPrompts
from baton_local.load_test.session_report import SessionRun, session_figures
from baton_simulate.sessions.session_load import SessionLoad, SessionTurn
from baton_simulate.sessions.turn_order import LoopLimits
from baton_testing.processes.deployment import Shape
from baton_wire.rules.prompt_placement import LatencyTargets
from baton_wire.rules.step_times import DecodeTimes, PacedTimes, PrefillTimes

MODEL: Final = "sessions"
IDS: Final = (1_000, 120_000) if torch.cuda.is_available() else (5, 200)
KV_GIB: Final = 100
"""Of each GPU; 24 sessions of 29,300 tokens hold 88."""
TINY_KV_GIB: Final = 1
H200: Final = LONG_CONTEXTS
PACED: Final = PacedTimes(
    label="one H200, Llama-3.1-8B, as sessions_predicted has it",
    prefill=PrefillTimes(fixed_s=H200.prompts_s, per_token_s=H200.over_knee_s, per_pair_s=H200.pair_s),
    decode=DecodeTimes(
        fixed_s=H200.weights_s, per_sequence_s=H200.row_s, over_knee_s=0.0, per_kv_token_s=H200.kv_token_s, knee=64
    ),
    kv_capacity_tokens=64 * 13_000,
)
LINKED_S: Final = 1.0
"""A gateway is routable with its first worker; by then it is linked to all."""
TIMEOUT_S: Final = 300.0
COLUMNS: Final = (
    *("load", "mode", "turns", "refused", "ideal %", "within %", "later within %", "sessions %", "TTFT p50"),
    *("TTFT p95", "later TTFT p50", "later TTFT p95", "TPOT p50", "TPOT p95", "tok/s", "local %", "kept %"),
)


def run_clients(
    urls: Sequence[str], load: SessionLoad, limits: LoopLimits, salt: int
) -> tuple[list[TurnAnswer], float]:
    """Carry out a load on gateways that turns take by chance, from a process of its own. Returns the answers, and its
    seconds."""
    draw = random.Random(salt)

    async def run() -> tuple[list[TurnAnswer], float]:
        answers: list[TurnAnswer] = []
        prompts = SessionPrompts(IdSegments(*IDS, salt))
        for turn in load.turns:
            prompts.as_json(turn.prompt)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            servers = [(url, LoadedServer(session, url, MODEL, IdPrompts(*IDS, salt))) for url in urls]

            async def send_turn(turn: SessionTurn) -> Answer:
                url, server = draw.choice(servers)
                request = server.request_of_json(prompts.as_json(turn.prompt), turn.output_tokens, {})
                return await send(session, url, request)

            began_s = time.monotonic()
            await closed_loop(load, send_turn, limits, answers.append)
            return answers, time.monotonic() - began_s

    return asyncio.run(run())


def figures_of(
    load: SessionLoad,
    mode: str,
    answers: Sequence[TurnAnswer],
    seconds: float,
    targets: LatencyTargets,
    slowed: float = 1.0,
) -> dict[str, Cell]:
    """The row of `sessions_predicted`, from what clients saw. `slowed`: how many times as long all steps took."""
    turns = [
        TurnTimes(load.turns[place], answer.ttft_s / slowed, answer.tpot_s / slowed, answer.end is AnswerEnd.WHOLE)
        for place, answer in ((answered.place, answered.answer) for answered in answers)
    ]
    ordered = tuple(sorted(answers, key=lambda answered: answered.answer.sent_s))
    share = session_figures([SessionRun(load, ordered)]).cached_of_ideal
    refused = [turn for turn in turns if not turn.is_whole]
    row: dict[str, Cell] = {"load": load.name, "mode": mode, "turns": len(turns), "refused": len(refused)}
    row["later refused"] = sum(bool(turn.turn.after) for turn in refused)
    row["ideal %"] = None if share is None else round(100 * share, 1)
    row |= turn_figures(turns, targets, seconds / slowed)
    if failures := sorted({answered.answer.failure for answered in answers if answered.answer.failure}):
        row["failures"] = "; ".join(failures)[:300]
    return row


def measure(  # noqa: PLR0913 - one call site: a load's place in the run
    service: PlacedWorkers,
    clients: multiprocessing.pool.Pool,
    options: Any,
    mode: str,
    load: SessionLoad,
    number: int,
    gateways: int,
    salt: int,
) -> dict[str, Cell]:
    """The load's row. `number`: its place among the loads, which have targets of their own."""
    targets = LatencyTargets(*(by_load[min(number, len(by_load) - 1)] for by_load in (options.ttft, options.tpot)))
    slowed = options.slowed if options.paced else 1.0
    service.gateways = gateways
    service.serve(
        Point("sessions", mode, 1e3 * slowed * targets.tpot_s, 0.0), (f"--slo-ttft-s={slowed * targets.ttft_s}",)
    )
    time.sleep(LINKED_S)
    is_named = load.name == "two-gpus"
    limits = LoopLimits(
        *(None if is_named else options.users, None, options.think_scale),
        duration_s=None if is_named else slowed * options.duration,
    )
    children = {worker.child.name: worker.child for worker in service.shown}
    cpu_s = {name: child.cpu_s() for name, child in children.items()}
    began_s = time.monotonic()
    answers, seconds = clients.apply(run_clients, (service.urls, load, limits, salt))
    ended_s = time.monotonic()
    row = figures_of(load, mode, answers, seconds, targets, slowed) | scrape_routes(service)
    row["gateways"] = gateways
    row["transport"] = transports(service)
    time.sleep(FLUSH_S)
    for name, figures in service.traced_figures(began_s, ended_s, LONG_CONTEXTS).items():
        busy = round(100 * (children[name].cpu_s() - cpu_s[name]) / (ended_s - began_s))
        row |= {f"{name} {figure}": value for figure, value in figures.items()} | {f"{name} CPU %": busy}
    return row


def main() -> None:
    parser = load_parser(__doc__)
    parser.add_argument("--ttft", type=float, nargs="+", default=[2.0], help="target in seconds, by load")
    parser.add_argument("--tpot", type=float, nargs="+", default=[0.015], help="target in seconds, by load")
    parser.add_argument("--max-queue", type=float, help="the gateway's --max-queue-s (default: its own)")
    parser.add_argument("--transport", choices=("tcp", "ucx"), default="ucx")
    parser.add_argument("--gpus", nargs="+", metavar="GPU", help="a worker's each (default: the first ones)")
    parser.add_argument("--paced", action="store_true", help="emulate an H200's step times")
    parser.add_argument(
        "--slowed", type=float, default=1.0, help="emulate steps this many times as long (with --paced)"
    )
    parser.add_argument("--most-s", type=float, default=float("inf"), help="begin no load after this time")
    parser.add_argument("--steps", type=Path, metavar="DIR", help="folder for the steps that workers write down")
    parser.add_argument("--out", type=Path, default=FOLDER / "gpu_sessions.json")
    options = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    is_whole = is_gpu or options.paced
    loads = (
        [load_named(name, options.sessions, 1) for name in options.load] if is_whole else [two_gpus(4, 300, 3, 60, 20)]
    )
    rows: list[dict[str, Cell]] = []
    notes = [f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if is_gpu else "CPU: a trial of the bench"]
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place, context.Pool(1) as clients:
        folder = Path(place)
        for group in (["never"], ["always", "auto"]):
            modes = [mode for mode in options.mode if mode in group]
            if not modes:
                continue
            with _service(folder, modes[0], options) as service:
                notes.append(f"{', '.join(modes)}: ready after {time.monotonic() - began:.0f} s")
                print(notes[-1], flush=True)
                for turn, (mode, gateways, load) in enumerate(product(modes, options.gateways, loads)):
                    if time.monotonic() - began > options.most_s:
                        notes.append(f"not begun, for --most-s {options.most_s:g}: {mode} {load.name}")
                        print(notes[-1], flush=True)
                        continue
                    salt = 1_000 * (MODES.index(mode) + 1) + turn
                    row = measure(service, clients, options, mode, load, loads.index(load), gateways, salt)
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    write(options.out, {"notes": notes, "rows": rows})
            for path in (folder / modes[0] / "run").glob("*.steps") if options.steps else ():
                options.steps.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, options.steps / f"{modes[0]}-{path.name}")
    publish("gpu_sessions", this_machine(), notes, COLUMNS, rows)


def _service(folder: Path, mode: str, options: Any) -> PlacedWorkers:
    """Workers for a mode, each on a GPU of its own."""
    here = folder / mode
    here.mkdir()
    is_gpu = torch.cuda.is_available()
    worker_flags: tuple[str, ...] = (
        ("--dtype=bfloat16", "--device=cuda") if is_gpu else ("--dtype=float32", "--device=cpu")
    )
    if options.paced:
        times = here / "times.json"
        paced = msgspec.structs.replace(
            PACED, prefill=PACED.prefill.slowed(options.slowed), decode=PACED.decode.slowed(options.slowed)
        )
        times.write_bytes(msgspec.json.encode(paced))
        worker_flags = (f"--paced={times}", f"--max-context-tokens={MOST_TOKENS}", *worker_flags)
    sequences = ("--max-sequences=64",)
    pools = options.pools
    gpus = options.gpus or [str(number) for number in range(pools.workers)]
    shape = Shape(
        prefill=0 if mode == "never" else pools.prefill,
        decode=pools.workers if mode == "never" else pools.decode,
        model=_model(here, is_gpu=is_gpu, is_paced=options.paced),
        served_name=MODEL,
        worker_flags=(*worker_flags, f"--transport={options.transport}"),
        prefill_flags=("--keep-answers", *sequences),
        decode_flags=sequences,
        max_queue_s=options.max_queue,
    )
    gpu_of = pools.gpu_of(mode, gpus)
    room = KV_GIB if is_gpu and not options.paced else TINY_KV_GIB
    return PlacedWorkers(here / "run", shape, gpu_of, dict.fromkeys(gpu_of, room), traced=True)


def _model(folder: Path, *, is_gpu: bool, is_paced: bool) -> str | Path:
    """The model's source: a shape with a tokenizer, or the tiny model where a CPU computes."""
    if not is_gpu and not is_paced:
        return Shape().model
    source = model_folder({**LLAMA_8B, "max_position_embeddings": MOST_TOKENS}, folder)
    return folder if is_paced else source


if __name__ == "__main__":
    main()
