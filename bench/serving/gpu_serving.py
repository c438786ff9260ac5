"""Serving on GPUs through gateway and separate workers: TTFT, the gap after the first token, TPOT, and exact answers.

`python -m bench gpu_serving [check] [alone] [streams] [--transport tcp ucx]`. The prefill worker has the
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
import random
import re
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from bench.engine.gpu import LLAMA_8B
from bench.engine.subjects import TINY
from bench.machine import this_machine
from bench.results import Cell, publish
from bench.serving.load import drive, random_prompt
from bench.serving.offline import model_folder
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_local.client import AnswerError, ClientRequest, ask, completion, open_session, send
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Deployment, Shape, Worker

MODEL: Final = "bench"
LENGTHS: Final = (1024, 4096, 8192, 16384)
ROUNDS: Final = 5
ALONE_TOKENS: Final = 64
STREAMS: Final = 256
STREAM_ASK: Final = (256, 640)
SAMPLE_S: Final = 0.2
BUSY: Final = re.compile(r"^baton_busy_seconds_total\{.*\} (\S+)$", re.MULTILINE)
CHECKED_PROMPTS: Final = 24
CHECKED_TOKENS: Final = 96
STEP: Final = re.compile(r"handover_steps step (\w+/\d+) (\d+\.\d+) (.*)$", re.MULTILINE)
ORIGIN: Final = "first token drawn"
NAMES: Final = {
    "opened": "asked for",
    "granted": "granted",
    "put done": "last PUT done",
    "seal sent": "sealed",
    "seal received": "seal at D",
    "landed": "scattered and verified",
    "second token drawn": "second token drawn",
}
ALONE_COLUMNS: Final = ("prompt", "workers", "transport", "TTFT ms", "token 1→2 ms", "TPOT ms", "TPOT after ms")


def service(model: str, dtype: str, device: str, transport: str, apart: bool, folder: str) -> Deployment:
    """1P+1D, or one worker that does both."""
    gpus = max(1, torch.cuda.device_count())
    share = 30 << 30 if gpus == 1 else 60 << 30
    visible = {"prefill": "0", "decode": str(gpus - 1)} if device == "cuda" else {"prefill": "", "decode": ""}
    shape = Shape(
        prefill=int(apart),
        model=model,
        served_name=MODEL,
        worker_flags=(
            *(f"--dtype={dtype}", f"--device={device}", "--max-sequences=256", f"--transport={transport}"),
            *("--max-step-tokens=16384", f"--kv-cache-bytes={share if device == 'cuda' else 1 << 28}"),
        ),
        gateway_flags=(f"--disaggregation={'always' if apart else 'never'}",),
        environment={role: {"CUDA_VISIBLE_DEVICES": gpu, "BATON_LOG_LEVEL": "DEBUG"} for role, gpu in visible.items()},
    )
    return Deployment(Path(folder), shape)


@contextmanager
def print_logs_on_failure(running: Deployment) -> Iterator[Deployment]:
    """Print the ends of the logs if a request fails."""
    try:
        yield running
    except (AnswerError, OSError):
        for path in running.folder.glob("*.log"):
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
            service(str(TINY), dtype, device, transport, True, place) as running,
            print_logs_on_failure(running),
        ):
            print(_links(running), flush=True)
            requests = [completion(MODEL, prompt, CHECKED_TOKENS, stream=False) for prompt in prompts[:CHECKED_PROMPTS]]
            served = [ask(running.base_url, request).texts[0] for request in requests]
            together = asyncio.run(_texts(running.base_url, requests))
        equal = sum(one.strip() == other.strip() for one, other in zip(served, wanted, strict=True))
        same = sum(one == other for one, other in zip(served, together, strict=True))
        lines.append(
            f"{dtype} over {transport}: {equal} of {len(wanted)} answers of {CHECKED_TOKENS} tokens equal those of "
            f"transformers; {same} the same alone and among the others"
        )
        parted = [
            _lead(model, tokenizer, prompt, ids, other)
            for prompt, ids, other, one in zip(prompts, drawn, served, wanted, strict=False)
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


async def _texts(url: str, requests: Sequence[ClientRequest]) -> list[str]:
    async with open_session(120) as session:
        answers = await asyncio.gather(*(send(session, url, request) for request in requests))
    return [answer.checked().texts[0] for answer in answers]


def alone(
    model: str, device: str, transports: Sequence[str], lengths: Sequence[int], mixed: bool
) -> list[dict[str, Cell]]:
    """One request at a time with fresh prompts, after two that warm up."""
    rows: list[dict[str, Cell]] = []
    for name, transport in (("1P+1D", transport) for transport in transports):
        rows += _alone(model, device, name, transport, True, lengths)
    return rows + (_alone(model, device, "1 mixed", "tcp", False, lengths) if mixed else [])


def _alone(
    model: str, device: str, name: str, transport: str, apart: bool, lengths: Sequence[int]
) -> list[dict[str, Cell]]:
    draw = random.Random(5)
    rows: list[dict[str, Cell]] = []
    dtype = "bfloat16" if device == "cuda" else "float32"
    with (
        tempfile.TemporaryDirectory() as place,
        service(model, dtype, device, transport, apart, place) as running,
        print_logs_on_failure(running),
    ):
        if apart:
            print(_links(running), flush=True)
        for length in lengths:
            asks = [completion(MODEL, random_prompt(length, 1000, draw), ALONE_TOKENS) for _ in range(ROUNDS + 2)]
            drive(running.base_url, asks[:2], 1)
            since_s = time.monotonic()
            answers = drive(running.base_url, asks[2:], 1)
            rows.append(
                {
                    "prompt": length,
                    "workers": name,
                    "transport": transport if apart else "–",
                    "TTFT ms": round(1e3 * median(a.ttft_s for a in answers), 2),
                    "token 1→2 ms": round(1e3 * median(a.times_s[1] - a.times_s[0] for a in answers), 2),
                    "TPOT ms": round(1e3 * median(a.tpot_s for a in answers), 3),
                    "TPOT after ms": round(
                        1e3 * median((a.times_s[-1] - a.times_s[1]) / (a.tokens - 2) for a in answers), 3
                    ),
                }
            )
            print(rows[-1], flush=True)
            if apart:
                print(f"  {timeline(running.folder, since_s)}", flush=True)
    return rows


def _links(running: Deployment) -> str:
    """The prefill worker's report on its links to decode workers, once it has measured one."""
    (worker,) = running.of_role("prefill")

    def measured() -> str | None:
        links = worker.state()["transfer"]["links"]
        return json.dumps(links) if links and links[0]["bytes_per_s"] is not None else None

    return wait_for(measured, "a link that was measured", 10.0)


def timeline(folder: Path, since_s: float) -> str:
    """Medians in milliseconds from the drawing of the first token, over hand-overs that were asked for after `since_s`.

    `since_s` is on CLOCK_MONOTONIC; `folder` has the logs of the workers, all of this machine.
    """
    handovers: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for path in folder.glob("*.log"):
        for key, at_s, step in STEP.findall(path.read_text(errors="replace")):
            handovers[key][step] = float(at_s)
    whole = [steps for steps in handovers.values() if ORIGIN in steps and steps.get("opened", 0.0) >= since_s]
    texts = []
    for step, name in NAMES.items():
        times = [1e3 * (steps[step] - steps[ORIGIN]) for steps in whole if step in steps]
        if times:
            texts.append(f"{name} {median(times):+.2f}")
    return f"{len(whole)} hand-overs, ms from the first token: {', '.join(texts)}"


def streams(model: str, device: str, transport: str, count: int) -> list[str]:
    """Many streams at once: output tokens per second, processor time by process, and the share of the time in which the
    decode worker's device worked while all streams ran: the rest of the time it waited for the host or the network."""
    draw = random.Random(9)
    dtype = "bfloat16" if device == "cuda" else "float32"
    prompt, output = STREAM_ASK
    lines = []
    with (
        tempfile.TemporaryDirectory() as place,
        service(model, dtype, device, transport, True, place) as running,
        print_logs_on_failure(running),
    ):
        children = [*(worker.child for worker in running.workers), running.gateway]
        for streams_now in (count // 8, count):
            asks = [completion(MODEL, random_prompt(prompt, 1000, draw), output) for _ in range(streams_now)]
            before = [child.cpu_s() for child in children]
            with sampled_busy_s(running.of_role("decode")[0]) as samples:
                answers = drive(running.base_url, asks, streams_now)
            wall = max(a.times_s[-1] for a in answers) - min(a.sent_s for a in answers)
            since, until = max(a.times_s[1] for a in answers), min(a.times_s[-1] for a in answers)
            inside = [sample for sample in samples if since <= sample[0] <= until]
            spent = zip(children, before, strict=True)
            cpu = ", ".join(f"{child.name} {child.cpu_s() - before_s:.2f} s" for child, before_s in spent)
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
def sampled_busy_s(worker: Worker) -> Iterator[list[tuple[float, float]]]:
    """(clock, seconds that the worker's device has worked so far), every `SAMPLE_S` until the context ends."""
    samples: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            if (busy := BUSY.search(worker.metrics())) is not None:
                samples.append((time.monotonic(), float(busy[1])))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
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
