"""Workers that die, freeze or leave while answers stream: every stream goes on to its exact end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Deployment, Shape, Worker

pytestmark = pytest.mark.processes

STREAMS = 6
LONGEST = "Count to one hundred."


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(prefill=2, decode=2, gateway_processes=2)


class Stream:
    """A greedy answer being streamed in a thread."""

    def __init__(self, client: openai.OpenAI, question: str) -> None:
        self._client = client
        self._question = question
        self.text = ""
        self.begun = threading.Event()

    def run(self) -> str:
        stream = self._client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": self._question}], temperature=0, stream=True
        )
        reason = None
        for chunk in stream:
            for choice in chunk.choices:
                self.text += choice.delta.content or ""
                reason = choice.finish_reason or reason
            self.begun.set()
        assert reason == "stop"
        return self.text


def expected(question: str) -> str:
    return tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids(question), 320).ids)


@pytest.fixture
def harm_during_streams(
    deployment: Deployment, client: openai.OpenAI
) -> Iterator[Callable[[Callable[[], None]], list[str]]]:
    """Start streams, do something to a worker once all have begun, and return their whole texts."""
    pool = ThreadPoolExecutor(STREAMS)

    def harm(act: Callable[[], None]) -> list[str]:
        streams = [Stream(client, LONGEST) for _ in range(STREAMS)]
        running: list[Future[str]] = [pool.submit(stream.run) for stream in streams]
        for stream in streams:
            assert stream.begun.wait(60)
        act()
        return [future.result(120) for future in running]

    yield harm
    pool.shutdown()


def busiest(workers: list[Worker]) -> Worker:
    return max(workers, key=lambda worker: (worker.state() or {"running": 0})["running"])


def test_kill_of_a_decode_worker_loses_no_token(
    deployment: Deployment, harm_during_streams: Callable[[Callable[[], None]], list[str]]
) -> None:
    victims: list[Worker] = []

    def kill() -> None:
        victims.append(busiest(deployment.of_role("decode")))
        victims[0].child.send(signal.SIGKILL)

    assert harm_during_streams(kill) == [expected(LONGEST)] * STREAMS
    deployment.replace(victims[0])
    deployment.await_idle()


def test_kill_of_a_prefill_worker_loses_no_request(deployment: Deployment, client: openai.OpenAI) -> None:
    questions = tiny_llama.LONG_ANSWERS[:24]
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(Stream(client, question).run) for question in questions]
        wait_for(lambda: any(future.done() for future in running) or None, "a first answer", 60)
        victim = deployment.of_role("prefill")[0]
        victim.child.send(signal.SIGKILL)
        texts = [future.result(120) for future in running]
    assert texts == [expected(question) for question in questions]
    deployment.replace(victim)
    deployment.await_idle()


def test_a_frozen_decode_worker_is_left_behind(
    deployment: Deployment, harm_during_streams: Callable[[Callable[[], None]], list[str]]
) -> None:
    """SIGSTOP: the links stay open and say nothing. The gateway gives up on them after its silence limit."""
    frozen: list[Worker] = []

    def freeze() -> None:
        frozen.append(busiest(deployment.of_role("decode")))
        frozen[0].child.send(signal.SIGSTOP)

    try:
        assert harm_during_streams(freeze) == [expected(LONGEST)] * STREAMS
    finally:
        frozen[0].child.send(signal.SIGCONT)
    deployment.await_idle()


def test_a_terminated_decode_worker_finishes_or_hands_on_its_streams(
    deployment: Deployment, harm_during_streams: Callable[[Callable[[], None]], list[str]]
) -> None:
    left: list[Worker] = []

    def leave() -> None:
        left.append(busiest(deployment.of_role("decode")))
        left[0].child.send(signal.SIGTERM)

    assert harm_during_streams(leave) == [expected(LONGEST)] * STREAMS
    assert left[0].child.wait(120) == 0
    deployment.replace(left[0])
    deployment.await_idle()


def test_a_worker_that_comes_back_is_used_again(deployment: Deployment, client: openai.OpenAI) -> None:
    """Both decode workers serve: with the gateway's routing, many parallel requests reach each worker."""
    deployment.await_routable()
    steps_before = [worker.state() for worker in deployment.of_role("decode")]
    assert all(state is not None for state in steps_before)
    began = time.monotonic()
    seen: set[str] = set()
    with ThreadPoolExecutor(8) as pool:
        while len(seen) < 2 and time.monotonic() - began < 120:
            running = [pool.submit(Stream(client, LONGEST).run) for _ in range(8)]
            while not all(future.done() for future in running):
                seen |= {w.child.name for w in deployment.of_role("decode") if (w.state() or {"running": 0})["running"]}
                time.sleep(0.02)
            for future in running:
                future.result()
    assert seen == {worker.child.name for worker in deployment.of_role("decode")}


def test_when_all_prefill_workers_are_gone_decode_workers_give_the_same_answers(
    deployment: Deployment, client: openai.OpenAI
) -> None:
    victims = deployment.of_role("prefill")
    for victim in victims:
        victim.child.send(signal.SIGKILL)
    for victim in victims:
        victim.child.wait(60)
    assert Stream(client, "What is a block?").run() == expected("What is a block?")
    for victim in victims:
        deployment.replace(victim)
    deployment.await_routable()

    def answered() -> bool | None:
        try:
            return Stream(client, "What is a block?").run() == expected("What is a block?")
        except openai.InternalServerError:
            return None

    wait_for(answered, "the service to answer again", 120)
    deployment.await_idle()
