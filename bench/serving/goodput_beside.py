"""Another server's goodput under the loads of `goodput`, by the same clients: a rival to compare with Baton.

    python -m bench goodput_beside --as "vLLM x2" --model NAME --trace azure_llm_2023_conv.csv \\
        --endpoint http://127.0.0.1:8001 http://127.0.0.1:8002 --points conv:25:40 conv:10:21 …

A point is MIX:TPOT_MS:RATE. Of several replicas each gets every n-th request. Servers are started by others, with a
model of the same shape; they have to take token ids as prompts and `ignore_eos`, as vLLM and SGLang do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.machine import this_machine
from bench.results import FOLDER, Cell, publish, write
from bench.serving.goodput import CLIENTS, COLUMNS, WARM_RATE, WARM_S, client_figures, offer
from bench.serving.mixes import MIXES, Point


def load(text: str) -> Point:
    """MIX:TPOT_MS:RATE. Raises ArgumentTypeError."""
    try:
        mix, tpot_ms, rate = text.split(":")
        return Point.parse(f"{mix}:never:{tpot_ms}:{rate}")
    except ValueError as error:
        allowed = f"MIX:TPOT_MS:RATE with a mix of {', '.join(MIXES)}"
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", nargs="+", required=True, help="a replica each, such as http://127.0.0.1:8001")
    parser.add_argument("--points", nargs="+", type=load, required=True, metavar="MIX:TPOT_MS:RATE")
    parser.add_argument("--as", dest="label", required=True, help="what tables and plots call it")
    parser.add_argument("--model", required=True, help="as the server calls it")
    parser.add_argument("--trace", type=Path, required=True, help="of Azure's conversations, for their lengths")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals a point (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=FOLDER / "goodput_beside.json")
    options = parser.parse_args()
    if CLIENTS % len(options.endpoint):
        parser.error(f"--endpoint: {len(options.endpoint)} servers; {CLIENTS} clients can be shared out to 1, 2 or 4")
    notes = [f"{options.label}; {options.seconds:g} s of arrivals a point, seeds {options.seeds}"]
    rows: list[dict[str, Cell]] = []
    with ProcessPoolExecutor(CLIENTS, mp_context=multiprocessing.get_context("spawn")) as clients:
        for (number, point), seed in itertools.product(enumerate(options.points), options.seeds):
            warm = replace(point, rate=min(WARM_RATE, point.rate)).workload(options.trace, WARM_S, 0)
            offer(options.endpoint, options.model, clients, warm, 0, number)
            workload = point.workload(options.trace, options.seconds, seed)
            outcomes = offer(options.endpoint, options.model, clients, workload, seed, number)
            rows.append(client_figures(point, options.label, outcomes) | {"seed": seed})
            print(json.dumps(rows[-1]), flush=True)
            write(options.out, {"notes": notes, "rows": rows})
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    publish("goodput_beside", this_machine(), notes, columns, rows)


if __name__ == "__main__":
    main()
