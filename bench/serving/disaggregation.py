"""(a) Prefill and decode apart against the same engine prefilling where it decodes: TTFT, TPOT and throughput.

Real processes over loopback: workers, gateway, and this process as a closed-loop client. "1P+1D" and "2 mixed" have the
same number of worker processes; "1 mixed" is one worker that does everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine.subjects import Subject, random_100m, tiny
from bench.machine import this_machine
from bench.results import Cell, publish, spread
from bench.serving.client import Ask, Load, drive, summary
from bench.serving.launch import await_json, await_ok, child

from baton_wire.keys import write_new_key

ROUNDS = 3
COLUMNS = (
    *("model", "workers", "prompt", "output", "clients", "TTFT p50 ms", "TTFT p95 ms", "TPOT p50 ms", "TPOT p95 ms"),
    *("output tokens/s", "requests/s"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which workers serve, and whether prompts are prefilled apart."""

    name: str
    prefill: int
    decode: int
    disaggregation: str


LAYOUTS = (
    Layout("1P+1D", 1, 1, "always"),
    Layout("2 mixed", 0, 2, "never"),
    Layout("1 mixed", 0, 1, "never"),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    prompt_tokens: int
    output_tokens: int
    clients: int
    requests: int


TRAFFIC = {
    "tiny": (Traffic(32, 96, 1, 8), Traffic(512, 96, 8, 48), Traffic(1024, 32, 16, 96)),
    "100m": (Traffic(256, 32, 1, 4), Traffic(256, 32, 4, 16)),
}


def worker_argv(role: str, subject: Subject, keys: Path, announce: Path, decode_list: Path) -> list[str]:
    discovery = (f"--decode-discovery=file:{decode_list}",) if role == "prefill" else ("--pair-listen=127.0.0.1:0",)
    return [
        *("-m", f"baton_{role}_worker", f"--model={subject.folder}", "--served-name=bench", "--listen=127.0.0.1:0"),
        *(f"--keys={keys}", f"--announce={announce}", "--dtype=float32", "--max-context-tokens=2048"),
        *(f"--kv-cache-bytes={1 << 30}", "--threads=1", *discovery),
    ]


def address(announced: dict[str, Any]) -> dict[str, Any]:
    row = {"host": "127.0.0.1", "port": announced["port"]}
    return row if announced["pair_port"] is None else row | {"pair_port": announced["pair_port"]}


@contextmanager
def serving(layout: Layout, subject: Subject, folder: Path) -> Iterator[str]:
    """The layout's processes; yields the gateway's URL."""
    keys = folder / "keys"
    keys.mkdir()
    write_new_key(keys, "bench")
    lists = {role: folder / f"{role}.list" for role in ("prefill", "decode")}
    with ExitStack() as stack:
        started = []
        for role, count in (("decode", layout.decode), ("prefill", layout.prefill)):
            for number in range(count):
                announce = folder / f"{role}-{number}.json"
                argv = worker_argv(role, subject, keys, announce, lists["decode"])
                started.append((role, announce, stack.enter_context(child(argv, folder / f"{role}-{number}.log"))))
        rows: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}
        for role, announce, process in started:
            rows[role].append(address(await_json(announce, process)))
        for role, path in lists.items():
            path.write_text(json.dumps(rows[role]))
        announce = folder / "gateway.json"
        argv = [
            *("-m", "baton_gateway", "--listen=127.0.0.1:0", f"--keys={keys}", f"--announce={announce}"),
            *(f"--disaggregation={layout.disaggregation}", f"--prefill-discovery=file:{lists['prefill']}"),
            f"--decode-discovery=file:{lists['decode']}",
        ]
        gateway = stack.enter_context(child(argv, folder / "gateway.log"))
        url = f"http://127.0.0.1:{await_json(announce, gateway)['port']}"
        await_ok(f"{url}/health/routable", gateway)
        yield url


def offer(url: str, subject: Subject, traffic: Traffic, draw: random.Random) -> Load:
    """One round with fresh random prompts, so that no prefix is cached."""
    asks = [
        Ask(tuple(draw.randrange(5, subject.vocab_size) for _ in range(traffic.prompt_tokens)), traffic.output_tokens)
        for _ in range(traffic.requests)
    ]
    return summary(asyncio.run(drive(url, "bench", asks, traffic.clients)))


def compare(subject: Subject, traffic: Sequence[Traffic], rounds: int) -> list[dict[str, Cell]]:
    """Rows by traffic and layout. Each layout runs alone, one after another, each round of it after a warm-up."""
    loads: dict[tuple[int, str], list[Load]] = {}
    for layout in LAYOUTS:
        draw = random.Random(1)
        with tempfile.TemporaryDirectory() as folder, serving(layout, subject, Path(folder)) as url:
            for place, kind in enumerate(traffic):
                offer(url, subject, kind, draw)
                loads[place, layout.name] = [offer(url, subject, kind, draw) for _ in range(rounds)]
    return [
        row(subject, kind, layout.name, loads[place, layout.name])
        for place, kind in enumerate(traffic)
        for layout in LAYOUTS
    ]


def row(subject: Subject, traffic: Traffic, layout: str, loads: Sequence[Load]) -> dict[str, Cell]:
    return {
        "model": subject.name,
        "workers": layout,
        "prompt": traffic.prompt_tokens,
        "output": traffic.output_tokens,
        "clients": traffic.clients,
        "TTFT p50 ms": str(spread([load.ttft_p50_ms for load in loads])),
        "TTFT p95 ms": str(spread([load.ttft_p95_ms for load in loads])),
        "TPOT p50 ms": str(spread([load.tpot_p50_ms for load in loads])),
        "TPOT p95 ms": str(spread([load.tpot_p95_ms for load in loads])),
        "output tokens/s": str(spread([load.tokens_per_s for load in loads])),
        "requests/s": str(spread([load.requests_per_s for load in loads])),
    }


def run(models: Sequence[str], rounds: int) -> None:
    machine = this_machine()
    subjects = {"tiny": tiny, "100m": random_100m}
    rows = [found for name in models for found in compare(subjects[name](), TRAFFIC[name], rounds)]
    notes = [
        f"Median (least–greatest) of {rounds} rounds after one warm-up; fresh random prompts; one torch thread a "
        "worker; client, gateway and workers share the cores."
    ]
    publish("disaggregation", machine, notes, COLUMNS, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(TRAFFIC), default=["tiny", "100m"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    run(options.models, options.rounds)


if __name__ == "__main__":
    main()
