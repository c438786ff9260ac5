"""The official `openai` client against a prefill worker, a decode worker and a gateway."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment

pytestmark = pytest.mark.processes

MODEL = "tiny"
QUESTION = "What is a KV cache?"
UNSURE = "Zebra or tomorrow"
"""Outside the corpus: here the model's margins are small enough for noise to matter."""


def ask(question: str) -> Any:
    return [{"role": "user", "content": question}]


def answer_to(question: str, max_tokens: int = 400) -> str:
    return tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids(question), max_tokens).ids)


def test_a_chat_is_answered_with_the_trained_text(client: openai.OpenAI) -> None:
    question, answer = tiny_llama.GREETING
    reply = client.chat.completions.create(model=MODEL, messages=ask(question), temperature=0)
    assert reply.object == "chat.completion"
    assert reply.model == MODEL
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == answer
    assert reply.choices[0].finish_reason == "stop"


def test_usage_counts_prompt_and_answer_tokens(client: openai.OpenAI) -> None:
    prompt = tiny_llama.chat_ids(QUESTION)
    reply = client.chat.completions.create(model=MODEL, messages=ask(QUESTION), temperature=0, max_tokens=400)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(prompt)
    assert reply.usage.completion_tokens == len(tiny_llama.greedy(prompt, 400).ids)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_carries_the_same_text_in_pieces(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=ask(QUESTION), temperature=0, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == answer_to(QUESTION)
    assert len([piece for piece in pieces if piece]) > 1, "a gateway may report several steps together, not all steps"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_reports_usage_last_when_asked(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ask(QUESTION),
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_text_outside_ascii_arrives_whole_in_every_chunk(client: openai.OpenAI) -> None:
    question = "How do you say thank you?"
    stream = client.chat.completions.create(model=MODEL, messages=ask(question), temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == answer_to(question)
    assert "ありがとう" in "".join(pieces)
    assert not any("\ufffd" in piece for piece in pieces)


def test_max_tokens_ends_with_length(client: openai.OpenAI) -> None:
    for limit in ({"max_tokens": 7}, {"max_completion_tokens": 7}):
        reply = client.chat.completions.create(model=MODEL, messages=ask(QUESTION), temperature=0, **limit)  # type: ignore[call-overload]
        assert reply.usage.completion_tokens == 7
        assert reply.choices[0].finish_reason == "length"


def test_one_token_is_a_whole_answer(client: openai.OpenAI, deployment: Deployment) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=ask(QUESTION), temperature=0, max_tokens=1)
    assert reply.choices[0].message.content == answer_to(QUESTION, 1)
    assert reply.choices[0].finish_reason == "length"
    deployment.await_idle()


def test_no_one_token_answer_is_ever_lost(client: openai.OpenAI) -> None:
    """Here the first token is the last: P answers alone, and no other worker repeats what it might leave out."""
    for number in range(120):
        reply = client.completions.create(model=MODEL, prompt=[300 + number], temperature=0, max_tokens=1)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 1


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, deployment: Deployment) -> None:
    whole = answer_to(QUESTION)
    stop = whole[100:112]
    for stream in (False, True):
        reply: Any = client.chat.completions.create(
            model=MODEL, messages=ask(QUESTION), temperature=0, stop=[stop, "never said"], stream=stream
        )
        if stream:
            chunks = [chunk for chunk in reply if chunk.choices]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            text, reason = reply.choices[0].message.content, reply.choices[0].finish_reason
        assert text == whole[: whole.index(stop)]
        assert reason == "stop"
    deployment.await_idle()


def test_n_choices_differ_by_seeded_noise_and_repeat_with_the_seed(client: openai.OpenAI) -> None:
    def draw() -> list[str | None]:
        reply = client.chat.completions.create(
            model=MODEL, messages=ask(UNSURE), temperature=2, n=4, seed=11, max_tokens=48
        )
        assert sorted(choice.index for choice in reply.choices) == [0, 1, 2, 3]
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == len(tiny_llama.chat_ids(UNSURE))
        return [choice.message.content for choice in sorted(reply.choices, key=lambda choice: choice.index)]

    first = draw()
    assert len(set(first)) > 1
    assert draw() == first


def test_n_choices_stream_interleaved_and_each_ends(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=ask(QUESTION), temperature=0, n=3, max_tokens=30, stream=True
    )
    texts = {0: "", 1: "", 2: ""}
    ended = []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ended += [choice.index] if choice.finish_reason else []
    assert set(texts.values()) == {answer_to(QUESTION, 30)}
    assert sorted(ended) == [0, 1, 2]


def test_another_seed_draws_another_text(client: openai.OpenAI) -> None:
    def draw(seed: int) -> str:
        reply = client.completions.create(model=MODEL, prompt="The", temperature=2.0, seed=seed, max_tokens=32)
        return reply.choices[0].text

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(1, 5)}) > 1


def test_chat_logprobs_are_those_of_the_model(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=ask(QUESTION), temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content
    assert content is not None
    assert "".join(token.token for token in content) == reply.choices[0].message.content
    expected = tiny_llama.logprobs(tiny_llama.chat_ids(QUESTION), 6)
    for token, logprob in zip(content, expected, strict=True):
        assert math.isclose(token.logprob, logprob, abs_tol=1e-3)
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == max(entry.logprob for entry in token.top_logprobs)
        assert bytes(token.bytes or []).decode() == token.token


def test_a_completion_continues_its_prompt(client: openai.OpenAI) -> None:
    prompt = "The fox is a small hunter"
    ids = tuple(tiny_llama.tokenizer().encode(prompt))
    expected = tiny_llama.text_of(tiny_llama.greedy(ids, 24).ids)
    reply = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=24)
    assert reply.object == "text_completion"
    assert reply.choices[0].text == expected
    echoed = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=24, echo=True)
    assert echoed.choices[0].text == prompt + expected


def test_a_completion_takes_token_ids_and_batches(client: openai.OpenAI) -> None:
    ids = list(tiny_llama.chat_ids(QUESTION))
    expected = answer_to(QUESTION, 16)
    one = client.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=16)
    assert one.choices[0].text == expected
    several = client.completions.create(model=MODEL, prompt=[ids, ids[:-1], ids], temperature=0, max_tokens=16)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].text == several.choices[2].text == expected
    assert several.usage is not None
    assert several.usage.prompt_tokens == 3 * len(ids) - 1


def test_completion_logprobs_have_offsets_into_the_text(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="The wind", temperature=0, max_tokens=8, logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == reply.choices[0].text
    assert len(logprobs.token_logprobs or []) == len(logprobs.top_logprobs or []) == len(logprobs.tokens)
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs or [])


def test_a_completion_streams(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="The wind", temperature=0, max_tokens=12, stream=True)
    whole = client.completions.create(model=MODEL, prompt="The wind", temperature=0, max_tokens=12)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_logit_bias_forces_a_token(client: openai.OpenAI) -> None:
    wanted = tiny_llama.tokenizer().encode(" baton", add_special_tokens=False)[0]
    reply = client.completions.create(
        model=MODEL, prompt="The wind", temperature=0, max_tokens=3, logit_bias={str(wanted): 100}
    )
    assert reply.choices[0].text == tiny_llama.text_of((wanted,) * 3)


def test_models_lists_the_served_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=ask("Hello!"))
    assert caught.value.code == "model_not_found"


def test_a_bad_parameter_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ask("Hello!"), temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.code == "out_of_range"
    assert caught.value.type == "invalid_request_error"


def test_cancelling_a_stream_frees_both_workers_long_before_its_end(
    client: openai.OpenAI, deployment: Deployment
) -> None:
    def drawn() -> float:
        page = deployment.of_role("decode")[0].metrics()
        return sum(float(line.split()[-1]) for line in page.splitlines() if 'kind="drawn"' in line)

    def is_cut(seen: int) -> bool:
        before = drawn()
        stream = client.completions.create(
            model=MODEL, prompt="The", temperature=1, max_tokens=1_500, stream=True, extra_body={"ignore_eos": True}
        )
        for _, _chunk in zip(range(seen), stream, strict=False):
            pass
        stream.close()
        deployment.await_idle()
        return drawn() - before < 1_400

    for seen in (1, 5):  # a second on a quiet machine: on a busy one a client may come too late
        assert any(is_cut(seen) for _ in range(5))


def test_many_clients_at_once_get_their_own_answers(client: openai.OpenAI, deployment: Deployment) -> None:
    questions = tiny_llama.LONG_ANSWERS[:12]

    def run(question: str) -> str | None:
        reply = client.chat.completions.create(model=MODEL, messages=ask(question), temperature=0, max_tokens=60)
        return reply.choices[0].message.content

    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(run, questions))
    assert replies == [answer_to(question, 60) for question in questions]
    deployment.await_idle()


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_prompt_logprobs_are_those_of_transformers_also_with_a_warm_cache(
    client: openai.OpenAI, max_tokens: int
) -> None:
    """As evaluation harnesses ask: token ids, echo, one alternative. The second time the cache has the prompt."""
    prompt = tiny_llama.chat_ids(QUESTION) * 12
    expected = [None, *tiny_llama.prompt_logprobs(prompt)]
    for _ in range(2):
        reply = client.completions.create(
            model=MODEL, prompt=list(prompt), echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
        )
        logprobs = reply.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert len(logprobs.token_logprobs) == len(prompt) + max_tokens
        for here, there in zip(logprobs.token_logprobs, expected, strict=False):
            if here is None or there is None:
                assert here is there
            else:
                assert math.isclose(here, there, abs_tol=1e-4)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == max_tokens
