"""Prefill and decode apart against the same engine prefilling where it decodes: TTFT, TPOT and throughput.

Real processes over loopback: workers, gateway, and this process as a closed-loop client. "1P+1D" and "2 mixed" have the
same number of worker processes; "1 mixed" is one worker that does everything.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine.subjects import Subject, random_100m, tiny
from bench.machine import this_machine
from bench.results import Cell, publish, spread
from bench.serving.load import Load, drive, random_prompt, summary

from baton_local.client import completion
from baton_testing.processes.deployment import Deployment, Shape

ROUNDS = 3
MODEL = "bench"
COLUMNS = (
    *("model", "workers", "prompt", "output", "clients", "TTFT p50 ms", "TTFT p95 ms", "TPOT p50 ms", "TPOT p95 ms"),
    *("output tokens/s", "requests/s"),
)
LAYOUTS = {"1P+1D": (1, 1), "2 mixed": (0, 2), "1 mixed": (0, 1)}
"""Prefill and decode workers; without the former, prompts are prefilled where they are decoded."""


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


def shape(layout: str, subject: Subject) -> Shape:
    prefill, decode = LAYOUTS[layout]
    return Shape(
        prefill,
        decode,
        model=subject.folder,
        served_name=MODEL,
        worker_flags=("--dtype=float32", "--max-context-tokens=2048", f"--kv-cache-bytes={1 << 30}", "--threads=1"),
        gateway_flags=(f"--disaggregation={'always' if prefill else 'never'}",),
    )


def offer(url: str, subject: Subject, traffic: Traffic, draw: random.Random) -> Load:
    """One round with fresh random prompts, so that no prefix is cached."""
    requests = [
        completion(MODEL, random_prompt(traffic.prompt_tokens, subject.vocab_size, draw), traffic.output_tokens)
        for _ in range(traffic.requests)
    ]
    return summary(drive(url, requests, traffic.clients))


def compare(subject: Subject, traffic: Sequence[Traffic], rounds: int) -> list[dict[str, Cell]]:
    """Rows by traffic and layout. Each layout runs alone, one after another, each round of it after a warm-up."""
    loads: dict[tuple[int, str], list[Load]] = {}
    for layout in LAYOUTS:
        draw = random.Random(1)
        with (
            tempfile.TemporaryDirectory() as folder,
            Deployment(Path(folder), shape(layout, subject)) as service,
        ):
            for place, kind in enumerate(traffic):
                offer(service.base_url, subject, kind, draw)
                loads[place, layout] = [offer(service.base_url, subject, kind, draw) for _ in range(rounds)]
    return [
        row(subject, kind, layout, loads[place, layout]) for place, kind in enumerate(traffic) for layout in LAYOUTS
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(TRAFFIC), default=["tiny", "100m"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    machine = this_machine()
    subjects = {"tiny": tiny, "100m": random_100m}
    rows = [row for name in options.models for row in compare(subjects[name](), TRAFFIC[name], options.rounds)]
    notes = [
        f"Median (least–greatest) of {options.rounds} rounds after one warm-up; fresh random prompts; one torch thread "
        "a worker; client, gateway and workers share the cores."
    ]
    publish("disaggregation", machine, notes, COLUMNS, rows)


if __name__ == "__main__":
    main()
