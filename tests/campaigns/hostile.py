"""Attacks on one gateway: `make campaign RUN="hostile --count 5000"`.

First the largest legal and the smallest illegal request of every kind, one at a time next to streams of innocents: how
long `/health/live` takes, the widest gap of an innocent stream, the longest lag of the gateway's event loop, and its
memory two seconds later. Then random hostile requests from a seed. Null workers in a process of their own; a long
context or a short one.
Exits with 1 for any answer that was not meant, a traceback in the log, or requests that stay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.gateway.hostile_requests import HostileRequests, Verdicts
from baton_testing.gateway.hostile_shapes import bad_shapes
from baton_testing.gateway.null_service import MIB, MODEL, STEP_MS, Target, target
from baton_testing.gateway.raw_client import exchange, got, posted
from baton_testing.processes.child_process import Child, get_json
from baton_testing.processes.deployment import START_S

STREAMS = 8
AT_ONCE = 16
FIRST_SHARE = 10
"""Memory counts from the end of the first tenth: a process that has served nothing has not loaded everything."""
LOOK_S = 0.02
LARGE = "null-large"
SMALL_PROMPTS = 200
REFUSALS = 20


# One at a time -------------------------------------------------------------------------------------------------------


def bombs(context: int) -> list[tuple[str, str, bytes]]:
    """Name, path, body."""
    text = "the cat sat on "
    whole = text * (560_000)

    def completion(prompt: Any, **others: Any) -> bytes:
        return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1, **others}).encode()

    def raw(field_text: bytes) -> bytes:
        return b'{"model":"null","prompt":"a","max_tokens":1,"metadata":[' + field_text + b"1]}"

    def chat(content: Any) -> bytes:
        return json.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
        ).encode()

    part = {"type": "text", "text": "x"}
    fits = text * (context // 10)
    return [
        ("one short prompt", "/v1/completions", completion("a")),
        ("prompt of 8 MiB", "/v1/completions", completion(whole[: 8 * MIB - 200])),
        ("chat of 8 MiB", "/v1/chat/completions", chat(whole[: 8 * MIB - 200])),
        ("64 prompts, 8 MiB", "/v1/completions", completion([whole[:130_000]] * 64)),
        ("the longest prompt that fits", "/v1/completions", completion(fits)),
        ("the same as a chat", "/v1/chat/completions", chat(fits)),
        ("the same 16 times", "/v1/completions", completion([fits[: 8 * MIB // 17]] * 16)),
        ("as many ids as fit", "/v1/completions", completion([300] * (context - 2))),
        ("ids, 8 MiB", "/v1/completions", completion([300] * 1_600_000)),
        ("metadata of [], 8 MiB", "/v1/completions", raw(b"[]," * 2_790_000)),
        ("metadata of {}, 8 MiB", "/v1/completions", raw(b"{}," * 2_790_000)),
        ("metadata of floats, 8 MiB", "/v1/completions", raw(b"1.5," * 2_090_000)),
        ("metadata of strings, 8 MiB", "/v1/completions", raw(b'"",' * 2_790_000)),
        ("150,000 values", "/v1/completions", raw(b"[]," * 75_000)),
        ("310,000 text parts", "/v1/chat/completions", chat([part] * 310_000)[: 8 * MIB]),
        ("1,024 text parts", "/v1/chat/completions", chat([part] * 1_024)),
        ("levels, 8 MiB", "/v1/completions", b"[" * (8 * MIB)),
        ("quotes, 8 MiB", "/v1/completions", b'"' * (8 * MIB)),
        ("/tokenize of 8 MiB", "/tokenize", completion(whole[: 8 * MIB - 200]).replace(b', "max_tokens": 1', b"")),
    ]


@dataclass
class Watch:
    """Measurements of the gateway meanwhile, as other clients see it."""

    port: int
    health_s: float = 0.0
    gap_s: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Watch:
        self.tasks = [
            asyncio.create_task(self._health()),
            *(asyncio.create_task(self._stream()) for _ in range(STREAMS)),
        ]
        await asyncio.sleep(0.5)
        self.health_s = self.gap_s = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _health(self) -> None:
        while True:
            began = time.perf_counter()
            status, _ = await exchange(self.port, got("/health/live"))
            self.health_s = max(self.health_s, time.perf_counter() - began if status == 200 else 99.0)
            await asyncio.sleep(LOOK_S)

    async def _stream(self) -> None:
        body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1_500, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(posted("/v1/completions", body))
        try:
            last = time.perf_counter()
            while await reader.read(65_536):
                now = time.perf_counter()
                self.gap_s, last = max(self.gap_s, now - last), now
        finally:
            writer.close()


def longest(before: dict[float, float], after: dict[float, float]) -> float:
    """The bound under which every lag between two readings was, in seconds."""
    total = after[math.inf] - before[math.inf]
    return min(bound for bound in after if after[bound] - before[bound] == total)


async def send_bombs(at: Target, context: int) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    first_mib = 0.0
    for name, path, body in bombs(context):
        async with Watch(at.port) as watch:
            lags = await asyncio.to_thread(at.lags)
            began = time.perf_counter()
            status, answer = await exchange(at.port, posted(path, body))
            took_s = time.perf_counter() - began
            await asyncio.sleep(1.0)
            health_s, gap_s = watch.health_s, watch.gap_s
            lag_s = longest(lags, await asyncio.to_thread(at.lags))
        await asyncio.sleep(1.0)
        first_mib = first_mib or at.rss_mib
        code = (json.loads(answer).get("error") or {}).get("code", "") if answer[:1] == b"{" else ""
        rows.append(
            {
                "request": name,
                "bytes": len(body),
                "answer": f"{status} {code}".strip(),
                "s": round(took_s, 2),
                "health ms": round(1e3 * health_s),
                "gap ms": round(1e3 * gap_s),
                "lag ms, at most": round(1e3 * lag_s) if math.isfinite(lag_s) else None,
                "RSS %": round(100 * at.rss_mib / first_mib),
            }
        )
        print(rows[-1], flush=True)
    return rows


async def refusals(at: Target) -> list[dict[str, Cell]]:
    """Processor time of the gateway and its helper processes for each, its idle work included."""
    rows: list[dict[str, Cell]] = []
    for place, (name, _) in enumerate(bad_shapes(0)):
        answers, first_s = set(), at.gateway.cpu_s()
        for number in range(REFUSALS):
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            body = json.dumps(chat | bad_shapes(number + 1)[place][1]).encode()
            status, answer = await exchange(at.port, posted("/v1/chat/completions", body))
            answers.add(f"{status} {(json.loads(answer).get('error') or {}).get('code')}")
        used_s = at.gateway.cpu_s() - first_s
        rows.append(
            {"refused": name, "answer": ", ".join(sorted(answers)), "CPU ms": round(1e3 * used_s / REFUSALS, 2)}
        )
        print(rows[-1], flush=True)
    return rows


@contextlib.contextmanager
def other_workers(at: Target, vocabulary: int) -> Iterator[None]:
    """Workers of a model whose tokenizer the gateway has not seen; it does not know these workers yet."""
    folder = at.folder / LARGE
    folder.mkdir()
    shutil.copytree(at.folder / "keys", folder / "keys")
    announce = folder / "null.json"
    argv = (str(folder), f"--served-name={LARGE}", f"--vocabulary={vocabulary}", f"--announce={announce}")
    child = Child(LARGE, ("-m", "bench.serving.null_worker", *argv), folder)
    try:
        child.await_file(announce, START_S)
        yield
    finally:
        child.stop()


def discover_others(at: Target) -> None:
    for name in ("prefill.json", "decode.json"):
        known, others = (json.loads((folder / name).read_text()) for folder in (at.folder, at.folder / LARGE))
        draft = at.folder / f"{name}.draft"
        draft.write_text(json.dumps(known + others))
        draft.replace(at.folder / name)


async def prompt_ms(at: Target, model: str) -> float:
    """Median milliseconds of a request for one token of a small prompt."""
    body = json.dumps({"model": model, "prompt": "the cat sat on", "max_tokens": 1}).encode()
    taken = []
    for _ in range(SMALL_PROMPTS):
        began = time.perf_counter()
        status, _ = await exchange(at.port, posted("/v1/completions", body))
        assert status == 200, status
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


async def linked_others(at: Target) -> None:
    discover_others(at)
    async with asyncio.timeout(START_S):
        while LARGE not in (await exchange(at.port, got("/v1/models")))[1].decode():  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)


async def new_tokenizer(at: Target, vocabulary: int) -> list[dict[str, Cell]]:
    """A large tokenizer comes while others are served."""
    with other_workers(at, vocabulary):
        async with Watch(at.port) as watch:
            lags, began, first_mib = await asyncio.to_thread(at.lags), time.perf_counter(), at.rss_mib
            await linked_others(at)
            took_s = time.perf_counter() - began
            await asyncio.sleep(0.5)
            lag_s = longest(lags, await asyncio.to_thread(at.lags))
        row: dict[str, Cell] = {
            "tokens": vocabulary,
            "s to the link": round(took_s, 2),
            "health ms": round(1e3 * watch.health_s),
            "gap ms": round(1e3 * watch.gap_s),
            "lag ms, at most": round(1e3 * lag_s) if math.isfinite(lag_s) else None,
            "MiB more": round(at.rss_mib - first_mib),
        }
        for model in (MODEL, LARGE, MODEL, LARGE):
            name = f"{model}: small prompt ms"
            row[name] = round(min(await prompt_ms(at, model), float(row.get(name) or math.inf)), 2)
        print(row, flush=True)
        return [row]


# Many at once --------------------------------------------------------------------------------------------------------


async def send_flood(at: Target, count: int, seed: int) -> tuple[list[dict[str, Cell]], list[str]]:
    requests, verdicts = HostileRequests(seed, MODEL), Verdicts()
    before_fds = at.process.num_fds()
    first = count // FIRST_SHARE

    async def lane(left: Iterator[int]) -> None:
        for _ in left:
            await verdicts.judge(requests.draw(), at.port)

    async def lanes(number: int) -> None:
        left = iter(range(number))
        await asyncio.gather(*(lane(left) for _ in range(AT_ONCE)))

    await lanes(first)
    began_mib = at.rss_mib
    await lanes(count - first)
    await asyncio.sleep(3.0)
    state = get_json(f"http://127.0.0.1:{at.admin_port}/state")
    tracebacks = at.gateway.log.read_text(errors="replace").count("Traceback")
    rows: list[dict[str, Cell]] = [
        {"what": f"{kind}: {status}", "count": number} for (kind, status), number in sorted(verdicts.counts.items())
    ]
    rows += [
        {"what": "answers that were not meant", "count": len(verdicts.wrong)},
        {"what": "tracebacks in the gateway's log", "count": tracebacks},
        {"what": "bytes of the gateway's log", "count": at.gateway.log.stat().st_size},
        {"what": "descriptors more than before", "count": at.process.num_fds() - before_fds},
        {"what": "memory, % of that after the first tenth", "count": round(100 * at.rss_mib / began_mib)},
    ]
    wrong = list(verdicts.wrong) + (["a traceback in the log"] if tracebacks else [])
    if any(process["requests_running"] or process["requests_waiting"] for process in state["processes"]):
        wrong.append(f"requests stay: {state}")
    return rows, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--context-tokens", type=int, default=2_048)
    parser.add_argument("--one-by-one", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--refusals", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--vocabulary", type=int, default=128_000, help="of a tokenizer that comes later; 0: none does")
    parser.add_argument("--label", default="", help="goes into the notes")
    options = parser.parse_args()
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder, target(Path(folder), options.context_tokens) as at:
        notes = [f"Context of {options.context_tokens} tokens, {STREAMS} innocent streams of {STEP_MS:.0f} ms a token."]
        notes += [options.label] if options.label else []
        if options.one_by_one:
            rows = asyncio.run(send_bombs(at, options.context_tokens))
            columns = ("request", "bytes", "answer", "s", "health ms", "gap ms", "lag ms, at most", "RSS %")
            publish("hostile_one_by_one", machine, notes, columns, rows)
        if options.vocabulary:
            seen = asyncio.run(new_tokenizer(at, options.vocabulary))
            publish("hostile_new_tokenizer", machine, notes, tuple(seen[0]), seen)
        if options.refusals:
            refused = asyncio.run(refusals(at))
            publish("hostile_refusals", machine, notes, tuple(refused[0]), refused)
        wrong: list[str] = []
        if options.count:
            counted, wrong = asyncio.run(send_flood(at, options.count, options.seed))
            publish(
                "hostile_flood",
                machine,
                [f"{options.count} requests, seed {options.seed}."],
                ("what", "count"),
                counted,
            )
    print("\n".join(wrong[:20]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
