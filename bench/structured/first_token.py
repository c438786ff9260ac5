"""The cost of a schema until the first token: `python -m bench structured_first_token [--device cuda] [--shape NAME]`.

Gateway, prefill worker and decode worker as processes of their own. A request without a schema, one whose schema was
sent before, and one with a schema that is new take turns, so that a busy machine hits all alike. The prompt is
the same. Differences are of one round's requests: the same second, the same state of the caches.

A new schema has about 10 kB: twenty-five properties, each an object of four, with bounds and enumerations, under names
that are drawn anew. With `--shape` the model has the layers and the vocabulary of one that people run, random weights
and a tokenizer of as many words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.engine.gpu_model import SHAPES
from bench.machine import this_machine
from bench.results import Cell, percentile, publish, spread
from bench.serving.offline import model_folder

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment, Shape

PLAIN, KNOWN, NEW = "no schema", "known schema", "new schema"
GOALS: Final = {KNOWN: 0.5, NEW: 10.0}
"""Milliseconds more than without."""
PROPERTIES: Final = 25
TOKENS: Final = 4
TEMPLATE: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
WAIT_S: Final = 30.0
WARM_ROUNDS: Final = 10


def schema(dice: random.Random) -> dict[str, Any]:
    """About 10 kB, unlike any other."""

    def name() -> str:
        return "".join(dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))

    def part() -> dict[str, Any]:
        kinds: list[dict[str, Any]] = [
            {"type": "string", "maxLength": dice.randint(5, 60)},
            {"enum": [name() for _ in range(3)]},
            {"type": "integer", "minimum": 0, "maximum": dice.randint(10, 10_000)},
            {"type": "array", "items": {"type": "number"}, "maxItems": dice.randint(2, 9)},
        ]
        fields = {name(): kind for kind in kinds}
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}

    fields = {name(): part() for _ in range(PROPERTIES)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def body(asked: dict[str, Any] | None) -> bytes:
    chat: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me about owls."}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
        "stream": True,
    }
    if asked is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked}}
    return json.dumps(chat).encode()


async def first_token_s(port: int, data: bytes) -> float:
    """From the request to the first text of its answer; raises RuntimeError where there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    try:
        began = time.perf_counter()
        writer.write(head.encode() + data)
        seen, first = b"", 0.0
        while read := await asyncio.wait_for(reader.read(65_536), WAIT_S):
            seen += read
            if not first and re.search(rb'"content":\s*"[^"]', seen):
                first = time.perf_counter() - began
        if not first:
            raise RuntimeError(f"no first token: {seen[:300]!r}")
        return first
    finally:
        writer.close()


async def measure_first_tokens(port: int, rounds: int, seed: int) -> dict[str, list[float]]:
    dice = random.Random(seed)
    known = body(schema(dice))
    seconds_by_way: dict[str, list[float]] = {PLAIN: [], KNOWN: [], NEW: []}
    for number in range(rounds + WARM_ROUNDS):
        ways = [(PLAIN, body(None)), (KNOWN, known), (NEW, body(schema(dice)))]
        dice.shuffle(ways)
        for way, data in ways:
            seconds = await first_token_s(port, data)
            if number >= WARM_ROUNDS:
                seconds_by_way[way].append(seconds)
        if number % 50 == 49:
            print(f"{number + 1} rounds of {rounds + WARM_ROUNDS}", flush=True)
    return seconds_by_way


def rows_of(seconds_by_way: dict[str, list[float]]) -> Iterator[dict[str, Cell]]:
    for way, seconds in seconds_by_way.items():
        row: dict[str, Cell] = {"request": way}
        row |= {f"p{percent} ms": round(1e3 * percentile(seconds, percent), 2) for percent in (50, 95)}
        if way != PLAIN:
            more = [
                1e3 * (with_schema - plain) for with_schema, plain in zip(seconds, seconds_by_way[PLAIN], strict=True)
            ]
            row |= {"more, median ms": round(spread(more).median, 2), "more, p95 ms": round(percentile(more, 95), 2)}
            row["goal ms"] = GOALS[way]
        yield row


@contextmanager
def deployment(options: argparse.Namespace) -> Iterator[Deployment]:
    kv = ("--dtype", "float32", "--kv-cache-bytes", str(24 << 20))
    flags = ("--device", options.device, *(kv if options.device == "cpu" else ("--kv-cache-bytes", str(1 << 30))))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model: str | Path = tiny_llama.FOLDER
        if options.shape is not None:
            model = model_folder(dict(SHAPES[options.shape]), folder)
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
            flags += ("--max-context-tokens", "4096")
        with Deployment(folder / "served", Shape(model=model, worker_flags=flags)) as running:
            yield running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", choices=sorted(SHAPES), help="instead of tiny-llama")
    options = parser.parse_args()
    size = len(json.dumps(schema(random.Random(options.seed))))
    with deployment(options) as running:
        seconds_by_way = asyncio.run(measure_first_tokens(running.port, options.rounds, options.seed))
    columns = ["request", "p50 ms", "p95 ms", "more, median ms", "more, p95 ms", "goal ms"]
    notes = [f"{options.rounds} rounds, schemas of {size} bytes, {options.shape or 'tiny-llama'} on {options.device}"]
    publish("structured_first_token", this_machine(), notes, columns, list(rows_of(seconds_by_way)))


if __name__ == "__main__":
    main()
