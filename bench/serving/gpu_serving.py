"""Serving on GPUs through gateway and separate workers: TTFT, the gap behind the first token, TPOT, and exact answers.

`python -m bench.serving.gpu_serving [check] [alone] [streams] [--transport tcp ucx]`. The prefill worker has the
first GPU, the decode worker the last one (the same, where there is one). Llama-3.1-8B's shape with random bf16
weights, real processes, token ids in, a streaming client on loopback.

check    the tiny trained model: answers of P/D serving against `transformers` on the same GPU, float32 and bfloat16
alone    one request at a time, by prompt length, prefilled apart and where it is decoded
streams  256 clients at once: tokens per second, and what gateway and network cost the engine
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from bench.engine.gpu import LLAMA_8B
from bench.engine.subjects import TINY
from bench.machine import this_machine
from bench.results import Cell, publish
from bench.serving.client import Ask, drive
from bench.serving.handover_steps import timeline
from bench.serving.launch import await_json, await_ok, child, cpu_s
from bench.serving.offline import model_folder
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_wire.keys import write_new_key

LENGTHS: Final = (1024, 4096, 8192, 16384)
ROUNDS: Final = 5
ALONE_TOKENS: Final = 64
STREAMS: Final = 256
STREAM_ASK: Final = (256, 640)
SAMPLE_S: Final = 0.2
BUSY: Final = re.compile(r"^baton_busy_seconds_total\{.*\} (\S+)$", re.MULTILINE)
CHECKED_PROMPTS: Final = 24
CHECKED_TOKENS: Final = 96
ALONE_COLUMNS: Final = ("prompt", "workers", "transport", "TTFT ms", "token 1→2 ms", "TPOT ms", "TPOT after ms")


@dataclass(frozen=True, slots=True)
class Stack:
    """A gateway with its workers."""

    url: str
    pids: dict[str, int]
    folder: Path
    """With the workers' logs."""
    prefill_port: int | None
    """Where the prefill worker tells its state."""
    decode_port: int


@contextmanager
def serving(model: str, dtype: str, device: str, transport: str, apart: bool, folder: Path) -> Iterator[Stack]:
    """1P+1D, or one worker that does both."""
    keys = folder / "keys"
    keys.mkdir()
    write_new_key(keys, "bench")
    lists = {role: folder / f"{role}.list" for role in ("prefill", "decode")}
    gpus = max(1, torch.cuda.device_count())
    gpu = {"prefill": 0, "decode": gpus - 1}
    share = 30 << 30 if gpus == 1 else 60 << 30
    with ExitStack() as stack:
        pids, rows = {}, dict[str, list[dict[str, Any]]]({"prefill": [], "decode": []})
        started = []
        for role in ("decode", "prefill") if apart else ("decode",):
            announce = folder / f"{role}.json"
            pairing = f"--decode-discovery=file:{lists['decode']}" if role == "prefill" else "--pair-listen=127.0.0.1:0"
            argv = [
                *("-m", f"baton_{role}_worker", f"--model={model}", "--served-name=bench", "--listen=127.0.0.1:0"),
                *(f"--keys={keys}", f"--announce={announce}", f"--dtype={dtype}", f"--device={device}", pairing),
                *("--max-sequences=256", f"--transport={transport}", "--max-step-tokens=16384"),
                f"--kv-cache-bytes={share if device == 'cuda' else 1 << 28}",
            ]
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu[role]) if device == "cuda" else ""
            os.environ["BATON_LOG_LEVEL"] = "DEBUG"
            log = folder / f"{role}.log"
            started.append((role, announce, log, stack.enter_context(child(argv, log))))
        for name in ("CUDA_VISIBLE_DEVICES", "BATON_LOG_LEVEL"):
            os.environ.pop(name)
        for role, announce, log, process in started:
            try:
                told = await_json(announce, process)
            except RuntimeError as error:
                raise RuntimeError(log.read_text()[-3000:]) from error
            pair = {} if told["pair_port"] is None else {"pair_port": told["pair_port"]}
            rows[role].append({"host": "127.0.0.1", "port": told["port"], **pair})
            pids[role] = process.pid
        for role, path in lists.items():
            path.write_text(json.dumps(rows[role]))
        announce = folder / "gateway.json"
        argv = [
            *("-m", "baton_gateway", "--listen=127.0.0.1:0", f"--keys={keys}", f"--announce={announce}"),
            *(f"--disaggregation={'always' if apart else 'never'}", f"--prefill-discovery=file:{lists['prefill']}"),
            f"--decode-discovery=file:{lists['decode']}",
        ]
        gateway = stack.enter_context(child(argv, folder / "gateway.log"))
        url = f"http://127.0.0.1:{await_json(announce, gateway)['port']}"
        pids["gateway"] = gateway.pid
        await_ok(f"{url}/health/routable", gateway)
        try:
            yield Stack(url, pids, folder, rows["prefill"][0]["port"] if apart else None, rows["decode"][0]["port"])
        except (RuntimeError, OSError):
            for path in folder.glob("*.log"):
                print(path.name, path.read_text()[-2500:], flush=True)
            raise


def check(device: str, transport: str, dtypes: Sequence[str]) -> list[str]:
    """Share of equal answers on the trained tiny model, by dtype, and how near the choices were where they part."""
    tokenizer: Any = AutoTokenizer.from_pretrained(TINY)
    draw = random.Random(3)
    text = (TINY.parent.parent / "README.md").read_text(encoding="utf-8")
    prompts = [tokenizer.encode(text[at : at + 300])[: draw.randrange(8, 90)] for at in range(0, 4800, 200)]
    lines = []
    for dtype in dtypes:
        model: Any = AutoModelForCausalLM.from_pretrained(TINY, dtype=getattr(torch, dtype)).to(device).eval()
        model.generation_config.eos_token_id = None
        wanted, drawn = [], list[list[int]]()
        with torch.inference_mode():
            for prompt in prompts[:CHECKED_PROMPTS]:
                inputs = torch.tensor([prompt], device=device)
                mask = torch.ones_like(inputs)  # else the first token, which has the id of padding, is left out
                ids = model.generate(
                    inputs, attention_mask=mask, max_new_tokens=CHECKED_TOKENS, do_sample=False, pad_token_id=0
                )
                drawn.append(ids[0, len(prompt) :].tolist())
                wanted.append(tokenizer.decode(drawn[-1], skip_special_tokens=True))
        with (
            tempfile.TemporaryDirectory() as place,
            serving(str(TINY), dtype, device, transport, True, Path(place)) as s,
        ):
            if s.prefill_port is not None:
                print(_links(s.prefill_port), flush=True)
            found = [_text(s.url, prompt) for prompt in prompts[:CHECKED_PROMPTS]]
            together = asyncio.run(_texts(s.url, prompts[:CHECKED_PROMPTS]))
        equal = sum(one.strip() == other.strip() for one, other in zip(found, wanted, strict=True))
        same = sum(one == other for one, other in zip(found, together, strict=True))
        lines.append(
            f"{dtype} over {transport}: {equal} of {len(wanted)} answers of {CHECKED_TOKENS} tokens equal those of "
            f"transformers; {same} the same alone and among the others"
        )
        parted = [
            _lead(model, tokenizer, prompt, ids, other)
            for prompt, ids, other, one in zip(prompts, drawn, found, wanted, strict=False)
            if one.strip() != other.strip()
        ]
        if parted:
            leads = ", ".join(f"{lead:.3f} of {greatest:.1f}" for lead, greatest in sorted(parted))
            lines[-1] += f"; where they part, its greatest logit led the next by {leads}"
        print(lines[-1], flush=True)
    return lines


def _lead(model: Any, tokenizer: Any, prompt: list[int], drawn: list[int], other: str) -> tuple[float, float]:
    """By how much the greatest logit leads the next at the first token of `drawn` that is not in the other text, and
    that logit."""
    texts = (tokenizer.decode(drawn[: count + 1], skip_special_tokens=True).strip() for count in range(len(drawn)))
    same = next(count for count, text in enumerate(texts) if not other.strip().startswith(text))
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + drawn[:same]], device=model.device)).logits[0, -1].float()
    first, second = logits.topk(2).values.tolist()
    return first - second, first


def _body(prompt: Sequence[int]) -> bytes:
    body = {
        "model": "bench",
        "prompt": list(prompt),
        "max_tokens": CHECKED_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    return json.dumps(body).encode()


def _text(url: str, prompt: Sequence[int]) -> str:
    request = urllib.request.Request(
        f"{url}/v1/completions", _body(prompt), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: str = json.load(response)["choices"][0]["text"]
    return answer


async def _texts(url: str, prompts: Sequence[Sequence[int]]) -> list[str]:
    return await asyncio.gather(*(asyncio.to_thread(_text, url, prompt) for prompt in prompts))


def alone(
    model: str, device: str, transports: Sequence[str], lengths: Sequence[int], mixed: bool
) -> list[dict[str, Cell]]:
    """One request at a time with fresh prompts, after two that warm up."""
    rows: list[dict[str, Cell]] = []
    for name, transport in (("1P+1D", each) for each in transports):
        rows += _alone(model, device, name, transport, True, lengths)
    return rows + (_alone(model, device, "1 mixed", "tcp", False, lengths) if mixed else [])


def _alone(
    model: str, device: str, name: str, transport: str, apart: bool, lengths: Sequence[int]
) -> list[dict[str, Cell]]:
    draw = random.Random(5)
    rows: list[dict[str, Cell]] = []
    dtype = "bfloat16" if device == "cuda" else "float32"
    with tempfile.TemporaryDirectory() as place, serving(model, dtype, device, transport, apart, Path(place)) as stack:
        if stack.prefill_port is not None:
            print(_links(stack.prefill_port), flush=True)
        for length in lengths:
            asks = [Ask(tuple(draw.choices(range(10, 1000), k=length)), ALONE_TOKENS) for _ in range(ROUNDS + 2)]
            answers = [asyncio.run(drive(stack.url, "bench", [ask], 1))[0] for ask in asks[:2]]
            since_s = time.monotonic()
            answers = [asyncio.run(drive(stack.url, "bench", [ask], 1))[0] for ask in asks[2:]]
            rows.append(
                {
                    "prompt": length,
                    "workers": name,
                    "transport": transport if apart else "–",
                    "TTFT ms": round(1e3 * median(a.ttft_s for a in answers), 2),
                    "token 1→2 ms": round(1e3 * median(a.gap_s for a in answers), 2),
                    "TPOT ms": round(1e3 * median(a.tpot_s for a in answers), 3),
                    "TPOT after ms": round(1e3 * median(a.rest_s for a in answers), 3),
                }
            )
            print(rows[-1], flush=True)
            if apart:
                print(f"  {timeline(stack.folder, since_s)}", flush=True)
    return rows


def _links(port: int) -> str:
    """What the prefill worker says of its links to decode workers, once there is one that it has measured."""
    told = "[]"
    for _ in range(50):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as response:
            links = json.load(response)["transfer"]["links"]
        told = json.dumps(links)
        if links and links[0]["bytes_per_s"] is not None:
            break
        time.sleep(0.1)
    return told


def streams(model: str, device: str, transport: str, count: int) -> list[str]:
    """Many streams at once: output tokens per second, processor time by process, and the share of the time in which the
    decode worker's device worked while all of them ran: what is missing, it waited for the host or the network."""
    draw = random.Random(9)
    dtype = "bfloat16" if device == "cuda" else "float32"
    prompt, output = STREAM_ASK
    lines = []
    with tempfile.TemporaryDirectory() as place, serving(model, dtype, device, transport, True, Path(place)) as stack:
        for streams_now in (count // 8, count):
            asks = [Ask(tuple(draw.choices(range(10, 1000), k=prompt)), output) for _ in range(streams_now)]
            before = {role: cpu_s(pid) for role, pid in stack.pids.items()}
            with sampled_busy_s(stack.decode_port) as samples:
                answers = asyncio.run(drive(stack.url, "bench", asks, streams_now))
            wall = max(a.last_s for a in answers) - min(a.sent_s for a in answers)
            since, until = max(a.second_s for a in answers), min(a.last_s for a in answers)
            inside = [sample for sample in samples if since <= sample[0] <= until]
            spent = {role: cpu_s(pid) - before[role] for role, pid in stack.pids.items()}
            cpu = ", ".join(f"{role} {seconds:.2f} s" for role, seconds in spent.items())
            busy = "none"
            if len(inside) > 1:
                (begin_s, begin_busy_s), (end_s, end_busy_s) = inside[0], inside[-1]
                share = (end_busy_s - begin_busy_s) / (end_s - begin_s)
                busy = f"{100 * share:.1f} % of {end_s - begin_s:.2f} s in which all streams ran"
            lines.append(
                f"{streams_now} streams, {prompt} → {output}: {streams_now * output / wall:,.0f} output tokens/s over "
                f"{wall:.2f} s, TPOT p50 {1e3 * median(a.tpot_s for a in answers):.2f} ms; decode device busy {busy}; "
                f"processor time {cpu}"
            )
            print(lines[-1], flush=True)
    return lines


@contextmanager
def sampled_busy_s(port: int) -> Iterator[list[tuple[float, float]]]:
    """(clock, seconds that the worker's device has worked so far), every `SAMPLE_S` until the context ends."""
    found: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                told = BUSY.search(response.read().decode())
            if told is not None:
                found.append((time.perf_counter(), float(told[1])))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["check", "alone", "streams"], metavar="check|alone|streams")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--transport", nargs="+", choices=("tcp", "ucx"), default=["tcp"])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--no-mixed", action="store_true", help="leave out the worker that does both")
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    notes, rows = [], list[dict[str, Cell]]()
    if is_gpu:
        notes.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    with tempfile.TemporaryDirectory() as place:
        if is_gpu:
            model = model_folder({**LLAMA_8B, "max_position_embeddings": 20480}, Path(place))
        else:
            model = str(TINY)
        if "check" in options.parts:
            for transport in options.transport:
                notes += check(options.device, transport, options.dtypes)
        if "alone" in options.parts:
            rows = alone(
                model, options.device, options.transport, LENGTHS if is_gpu else (64, 512), not options.no_mixed
            )
        if "streams" in options.parts:
            notes += streams(model, options.device, options.transport[-1], STREAMS if is_gpu else 8)
    publish("gpu_serving", this_machine(), notes, ALONE_COLUMNS, rows)


if __name__ == "__main__":
    main()
