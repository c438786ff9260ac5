"""Delays that are planted in a real service: each names the part that must be the largest of the request's record."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from baton_gateway.records.parts import Part
from baton_testing.engine import tiny_llama
from baton_testing.gateway.three_tenants import BAD, GOOD, LIMITED
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Worker
from campaigns.explained.asking import Timed, ask, chat_body
from campaigns.explained.stage import Stage, after, stopped

DELAY_S = 1.8
"""Less than the 2.5 s of silence after which links are given up."""
FEW = 9
LONG_TOKENS = 900
SHORT = tiny_llama.GREETING[0]
_LONGS = iter(range(1 << 30))


@dataclass(frozen=True, slots=True)
class Planted:
    """One delay: how it is planted, and what must be named."""

    name: str
    plant: Callable[[Stage], Timed]
    parts: tuple[Part, ...]
    worker: str = ""
    """The role of the worker that must be named too; empty: none."""


def quick(stage: Stage, **options: Any) -> Timed:
    """Ask for a few tokens as the good tenant."""
    fields = {"max_tokens": 4, **options.pop("fields", {})}
    return ask(stage.port, chat_body(options.pop("question", SHORT), **fields), GOOD, **options)


def cold(tokens: int = LONG_TOKENS) -> list[int]:
    """Return ids of a prompt that is in no cache."""
    number = next(_LONGS)
    return [300 + (number * 7 + place * (number % 5 + 1)) % 600 for place in range(tokens)]


def long_prompt(stage: Stage, key: str = GOOD, tokens: int = LONG_TOKENS, max_tokens: int = 2) -> Timed:
    """Ask a long prompt that no cache knows."""
    body = {"model": "tiny", "prompt": cold(tokens), "max_tokens": max_tokens, "temperature": 0, "stream": True}
    return ask(stage.port, body, key, path="/v1/completions")


def long_answer(stage: Stage, key: str, question: str = "Count to one hundred.") -> Timed:
    """Ask for an answer of many tokens."""
    return ask(stage.port, chat_body(question, max_tokens=320), key)


@contextmanager
def busy(*works: Callable[[], object], settle_s: float = 0.3) -> Iterator[None]:
    """Have other requests under way; they are waited for at the end."""
    with ThreadPoolExecutor(len(works)) as pool:
        for work in works:
            pool.submit(work)
        time.sleep(settle_s)
        yield


# Planting -------------------------------------------------------------------------------------------------------------


def slow_body(stage: Stage) -> Timed:
    return quick(stage, pause_s=DELAY_S)


def slow_reader(stage: Stage) -> Timed:
    fields = {"max_tokens": 60, "n": 8, "logprobs": True, "top_logprobs": 20, "stream": False}
    return quick(stage, question="Count to one hundred.", fields=fields, reads_after_s=15.0)


def own_quota(stage: Stage) -> Timed:
    with busy(lambda: long_answer(stage, LIMITED)):
        return ask(stage.port, chat_body(SHORT, max_tokens=2), LIMITED)


def others_in_front(stage: Stage) -> Timed:
    lanes = [lambda q=question: long_answer(stage, GOOD, q) for question in tiny_llama.LONG_ANSWERS[:24]]
    with busy(*lanes):
        time.sleep(DELAY_S / 2)
        return quick(stage)


def stopped_helper(word: str, *, shapes: bool = False) -> Callable[[Stage], Timed]:
    """Stop a helper process of the gateway for a while. `shapes`: the request has a schema that is new."""

    def plant(stage: Stage) -> Timed:
        quick(stage, fields={"response_format": new_shape()} if shapes else {})
        helpers = [helper.pid for helper in stage.helpers(word)]
        assert helpers, f"no helper process has {word!r} in its command"
        with ExitStack() as stack:
            stack.enter_context(stopped(helpers))
            undo = stack.pop_all()
        after(DELAY_S, undo.close)
        return quick(stage, fields={"response_format": new_shape()} if shapes else {})

    return plant


def new_shape() -> dict[str, Any]:
    """Return a response format with a schema that was not compiled before."""
    properties = {f"x{next(_LONGS)}": {"type": "string"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def no_names(stage: Stage) -> Timed:
    """The discovery of workers finds none for a while, as with a DNS that does not answer."""
    stage.hides = True
    for worker in stage.of_role("decode"):
        worker.child.send(signal.SIGKILL)
        stage.replace(worker)
    after(DELAY_S, lambda: show_all(stage))
    return quick(stage)


def show_all(stage: Stage) -> None:
    stage.hides = False
    stage.publish()


def slow_weights(stage: Stage) -> Timed:
    """The only decode workers start anew, and stand still while they load their weights."""
    replacing = []
    for worker in stage.of_role("decode"):
        worker.child.send(signal.SIGKILL)
        worker.child.wait(30.0)
        replacing.append(threading.Thread(target=stage.replace, args=(worker,)))
    for thread in replacing:
        thread.start()
    try:
        return quick(stage)
    finally:
        for thread in replacing:
            thread.join()
        stage.await_routable()


def busy_prefill(stage: Stage) -> Timed:
    """Seven long prompts come just before, one fewer than may run."""
    with busy(*(lambda: long_prompt(stage) for _ in range(7)), settle_s=0.05):
        return long_prompt(stage)


def long_cold(stage: Stage) -> Timed:
    return long_prompt(stage, max_tokens=1)


def slow_link(role: str, tokens: int) -> Callable[[Stage], Timed]:
    """Make the way between the gateway and a role's workers long. The first frames that come late are waited for."""

    def plant(stage: Stage) -> Timed:
        with stage.slow_links(role, DELAY_S / 2):
            time.sleep(DELAY_S)
            return quick(stage, fields={"max_tokens": tokens})

    return plant


def slow_lane(stage: Stage) -> Timed:
    with stage.slow_lanes(DELAY_S / 2):
        return long_prompt(stage)


def held_still(pids: Callable[[Stage], list[int]]) -> Callable[[Stage], Timed]:
    """Stop processes from the first token of the answer on, for a while."""

    def plant(stage: Stage) -> Timed:
        def stop() -> None:
            with stopped(pids(stage)):
                time.sleep(DELAY_S)

        return quick(stage, question="Count to one hundred.", fields={"max_tokens": 24}, at_first=stop)

    return plant


def garbage(stage: Stage) -> Timed:
    """The gateway's process collects garbage for long: a signal of this campaign's own makes it do so."""
    pids = gateway_children(stage)

    def collect() -> None:
        for pid in pids:
            signal_pid(pid)

    return quick(stage, question="Count to one hundred.", fields={"max_tokens": 24}, at_first=collect)


def gateway_children(stage: Stage) -> list[int]:
    """Return the processes of the gateway that serve."""
    own = psutil.Process(stage.gateway.pid)
    return [own.pid, *(child.pid for child in own.children() if "_main" not in " ".join(child.cmdline()))]


def signal_pid(pid: int) -> None:
    os.kill(pid, signal.SIGUSR2)


def stopped_prefill(stage: Stage) -> Timed:
    pids = pids_of(stage, "prefill")
    with ExitStack() as stack:
        stack.enter_context(stopped(pids))
        undo = stack.pop_all()
    after(DELAY_S, undo.close)
    return long_prompt(stage, tokens=64, max_tokens=1)


def killed_prefill(stage: Stage) -> Timed:
    [worker] = stage.of_role("prefill")
    worker.child.send(signal.SIGSTOP)
    after(DELAY_S, lambda: worker.child.send(signal.SIGKILL))
    try:
        return long_prompt(stage, tokens=64, max_tokens=1)
    finally:
        stage.replace(worker)
        stage.await_routable()


def killed_decode(stage: Stage) -> Timed:
    """The decode worker that answers is stopped, then killed: the answer goes on at the other one."""
    victims: list[Worker] = []

    def kill() -> None:
        victims.extend(wait_for(lambda: running_workers(stage) or None, "an answer to be decoded", 10.0))
        for worker in victims:
            worker.child.send(signal.SIGSTOP)
        time.sleep(DELAY_S)
        for worker in victims:
            worker.child.send(signal.SIGKILL)

    try:
        return quick(stage, question="Count to one hundred.", fields={"max_tokens": 96}, at_first=kill)
    finally:
        for worker in victims:
            stage.replace(worker)
        stage.await_routable()


def running_workers(stage: Stage) -> list[Worker]:
    """Return the decode workers that have something to decode."""
    return [worker for worker in stage.of_role("decode") if (worker.state() or {}).get("running")]


def slow_steps(stage: Stage) -> Timed:
    """The decode workers get a fifth of their time: no silence, but long steps."""

    def pulse() -> None:
        until = time.monotonic() + 2 * DELAY_S
        while time.monotonic() < until:
            with stopped(pids_of(stage, "decode")):
                time.sleep(0.2)
            time.sleep(0.02)

    return quick(stage, question="Count to one hundred.", fields={"max_tokens": 24}, at_first=pulse)


def pids_of(stage: Stage, role: str) -> list[int]:
    return [worker.child.pid for worker in stage.of_role(role)]


def preempted(stage: Stage) -> Timed:
    """Older answers grow until their KV does not fit any more: the youngest one gives its blocks up."""
    [decode] = stage.of_role("decode")
    lanes = [lambda q=question: long_answer(stage, BAD, q) for question in tiny_llama.LONG_ANSWERS[:5]]
    with busy(*lanes):
        wait_for(lambda: ((decode.state() or {}).get("blocks_free", FEW) < FEW) or None, "few blocks to be free", 60.0)
        return ask(stage.port, chat_body(tiny_llama.LONG_ANSWERS[5], max_tokens=30), GOOD)


def full_slots(stage: Stage) -> Timed:
    with busy(lambda: long_answer(stage, BAD)):
        time.sleep(0.5)
        return quick(stage)


WHOLE: tuple[Planted, ...] = (
    Planted("the client sends its body slowly", slow_body, (Part.RECEIVING,)),
    Planted("the client reads slowly", slow_reader, (Part.SENDING,)),
    Planted("the tenant's own quota", own_quota, (Part.QUEUED,)),
    Planted("other requests in front", others_in_front, (Part.QUEUED,)),
    Planted("a slow chat template", stopped_helper("template_main"), (Part.RENDERING,)),
    Planted("a cold tokenizer", stopped_helper("tokenizer_main"), (Part.TOKENISING,)),
    Planted("a schema that compiles slowly", stopped_helper("format_compiler_main", shapes=True), (Part.COMPILING,)),
    Planted("discovery finds no worker (DNS)", no_names, (Part.PARKED,)),
    Planted("a busy prefill pool", busy_prefill, (Part.HELD, Part.PREFILL_QUEUE)),
    Planted("a long prompt with a cold prefix", long_cold, (Part.PREFILL,)),
    Planted("a slow link to the prefill worker", slow_link("prefill", 1), (Part.LINKS,)),
    Planted("a slow link to the decode worker", slow_link("decode", 4), (Part.LINKS,)),
    Planted("a slow link for KV", slow_lane, (Part.TRANSFER,)),
    Planted(
        "the gateway is stopped (SIGSTOP)", held_still(lambda stage: gateway_children(stage)), (Part.GATEWAY_STALLED,)
    ),
    Planted("the gateway collects garbage", garbage, (Part.GATEWAY_STALLED,)),
    Planted(
        "the decode worker is stopped (SIGSTOP)",
        held_still(lambda stage: pids_of(stage, "decode")),
        (Part.WORKER_SILENT,),
        "decode",
    ),
    Planted("the prefill worker is stopped (SIGSTOP)", stopped_prefill, (Part.WORKER_SILENT,), "prefill"),
    Planted("slow steps of the decode worker", slow_steps, (Part.SLOW_GAPS,)),
    Planted("a retry after the prefill worker was killed", killed_prefill, (Part.LOST_ATTEMPT,)),
    Planted("a migration after the decode worker was killed", killed_decode, (Part.LOST_ATTEMPT,)),
    Planted("a slow disk: workers still load their weights", slow_weights, (Part.PARKED,)),
)
"""Delays for a service with one prefill worker and two decode workers."""
SMALL: tuple[Planted, ...] = (Planted("a preemption", preempted, (Part.PREEMPTED,)),)
"""Delays for a decode pool whose KV does not fit."""
NARROW: tuple[Planted, ...] = (Planted("full slots at the decode worker", full_slots, (Part.DECODE_QUEUE,), "decode"),)
"""Delays for a decode worker with one slot."""
