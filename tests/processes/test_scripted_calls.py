"""Tool calls through real processes, with a model whose answer is known, also while workers die within a call.

`campaigns.scripted_calls` does the same for every format, and more often.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from baton_gateway.answers.output_parts import WholeAnswer
from baton_testing.engine.scripted_model import WORKER_FLAGS, write_scripted_model
from baton_testing.processes.deployment import Deployment, Shape, Worker
from baton_testing.processes.scripted_answers import Asked, expected_answer, long_call, token_marks, transcripts
from baton_testing.processes.scripted_tasks import Kill, TaskRun, busiest, draw_task

pytestmark = pytest.mark.processes

STREAMS = 3
DRAWN = 2
LONG = 500
"""Characters of an argument: the answer takes long enough for something to happen within it."""


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    folder: Path = tmp_path_factory.mktemp("model") / "scripted"
    model = write_scripted_model(folder, template_marks="<tool_call> </think>")
    return Shape(prefill=2, decode=2, model=model, served_name="scripted", worker_flags=WORKER_FLAGS)


@pytest.fixture(scope="module", params=("qwen3_coder", "harmony"))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def family_client(deployment: Deployment, family: str) -> Iterator[openai.OpenAI]:
    """A client of a gateway whose scripted model writes this family's calls."""
    thoughts = "harmony" if family == "harmony" else "think"
    url = deployment.start_gateway(f"gateway-{family}", (f"--tool-format={family}", f"--reasoning-format={thoughts}"))
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def test_answers_arrive_as_their_reader_reads_them(family: str, family_client: openai.OpenAI) -> None:
    texts = transcripts(family, DRAWN, seed=1)
    marks = token_marks(family)
    with ThreadPoolExecutor(4) as pool:
        whole = list(pool.map(lambda text: Asked(family_client, text, marks=marks).whole(), texts))
        streamed = list(pool.map(lambda text: Asked(family_client, text, marks=marks).streamed(), texts))
    for text, *answers in zip(texts, whole, streamed, strict=True):
        assert answers == [expected_answer(family, text)] * 2, text


Harm = Callable[[Callable[[], None]], list[WholeAnswer]]


@pytest.fixture
def harm_within_calls(client: openai.OpenAI) -> Harm:
    """Stream long calls, do something once all are within their arguments, and return the answers."""

    def harm(act: Callable[[], None]) -> list[WholeAnswer]:
        begun = threading.Barrier(STREAMS, action=act, timeout=60)
        text, _ = long_call(LONG)

        def ask(_: int) -> WholeAnswer:
            return Asked(client, text, on_call=lambda: (begun.wait(), None)[1]).streamed()

        with ThreadPoolExecutor(STREAMS) as pool:
            return list(pool.map(ask, range(STREAMS)))

    return harm


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "retargeted"])
def test_a_decode_worker_may_leave_in_the_middle_of_a_call(
    deployment: Deployment, harm_within_calls: Harm, harm: signal.Signals
) -> None:
    victims: list[Worker] = []

    def act() -> None:
        victims.append(busiest(deployment.of_role("decode")))
        victims[0].child.send(harm)

    assert harm_within_calls(act) == [long_call(LONG)[1]] * STREAMS
    deployment.replace(victims[0])
    deployment.await_idle()


def test_prefill_workers_may_die_while_calls_begin(deployment: Deployment, client: openai.OpenAI) -> None:
    (victim, _), (text, answer) = deployment.of_role("prefill"), long_call(LONG)
    killer = threading.Timer(0.05, victim.child.send, [signal.SIGKILL])
    with ThreadPoolExecutor(STREAMS) as pool:
        killer.start()
        answers = list(pool.map(lambda _: Asked(client, text).streamed(), range(2 * STREAMS)))
    killer.join()
    assert answers == [answer] * 2 * STREAMS
    deployment.replace(victim)
    deployment.await_idle()


def test_a_task_goes_on_as_scripted_when_workers_are_lost_in_its_calls(
    deployment: Deployment, family: str, family_client: openai.OpenAI
) -> None:
    dice = random.Random(family)
    task = draw_task(dice, family, (Kill.BOTH, Kill.HAND_OVER), as_tokens=True, number=1)
    assert TaskRun(deployment, family_client, dice).do(task, with_kills=True) == task.expected()
    deployment.await_idle()


def test_a_call_that_must_come_is_the_scripted_one_without_the_text_before_it(client: openai.OpenAI) -> None:
    """The grammar forbids text before calls: the model goes on with its script at the first token that is allowed."""
    text, answer = long_call(80)
    text = text.replace("I look.\n", "\n\n")
    called = Asked(client, text, fields={"tool_choice": "required"}).whole()
    assert [(call.name, json.loads(call.arguments)) for call in called.calls] == [
        (call.name, json.loads(call.arguments)) for call in answer.calls
    ]
