"""A prefill worker that keeps answers goes on alone when the decode worker dies, token for token."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Deployment, Shape

pytestmark = pytest.mark.processes

QUESTIONS = tiny_llama.LONG_ANSWERS[:4]


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(prefill_flags=("--keep-answers",))


def test_answers_go_on_where_their_prompts_were_computed(deployment: Deployment, client: openai.OpenAI) -> None:
    begun = threading.Barrier(len(QUESTIONS) + 1, timeout=60)

    def ask(question: str) -> str:
        text = ""
        for chunk in client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": question}], temperature=0, stream=True, max_tokens=320
        ):
            is_first = not text
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if is_first and text:
                begun.wait()
        return text

    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        answers = [pool.submit(ask, question) for question in QUESTIONS]
        begun.wait()
        (decode,) = deployment.of_role("decode")
        decode.child.send(signal.SIGKILL)
        texts = [answer.result(timeout=120) for answer in answers]
    for question, text in zip(QUESTIONS, texts, strict=True):
        expected = tiny_llama.greedy(tiny_llama.chat_ids(question), 320)
        safe = expected.safe_tokens()
        assert text.startswith(tiny_llama.text_of(expected.ids[:safe]).rstrip("\ufffd"))
    (prefill,) = deployment.of_role("prefill")
    wait_for(lambda: prefill.state()["running"] == 0 or None, "nothing to be left running", 60)
    assert ask_alone(client) == tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids("What is a rainbow?"), 40).ids)


def ask_alone(client: openai.OpenAI) -> str:
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "What is a rainbow?"}], temperature=0, max_tokens=40
    )
    return reply.choices[0].message.content or ""
