"""The official client against the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, ids_of, until

USER: ChatCompletionUserMessageParam = {"role": "user", "content": "Hello"}


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=gateway.url("/v1"), api_key="none", max_retries=0) as client:
        yield client


async def test_chat_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="tiny", messages=[USER], n=2, seed=1)
    assert [choice.message.content for choice in whole.choices] == [ANSWER, f"{ANSWER} 1"]
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = await client.chat.completions.create(
        model="tiny", messages=[USER], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_completions_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=50, echo=True)
    assert [choice.text for choice in whole.choices] == ["a" + ANSWER, "b" + ANSWER]
    stream = await client.completions.create(model="tiny", prompt="a", max_tokens=50, stream=True, stop=["baton"])
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Grüße, the "


async def test_logprobs(client: openai.AsyncOpenAI) -> None:
    got = await client.chat.completions.create(model="tiny", messages=[USER], logprobs=True, top_logprobs=3)
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == len(ids_of(ANSWER))
    assert len(logprobs.content[0].top_logprobs) == 3


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).object == "model"


async def test_errors_have_their_classes(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="tiny", messages=[USER], temperature=9)
    assert (bad.value.param, bad.value.code, bad.value.type) == ("temperature", "out_of_range", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="other", messages=[USER])
    assert unknown.value.code == "model_not_found"
    for worker in gateway.pool.workers:
        await worker.report(draining=True)
    await until(lambda: all(view.is_draining for view in gateway.server.table.views()))
    with pytest.raises(openai.InternalServerError) as none:
        await client.chat.completions.create(model="tiny", messages=[USER])
    assert none.value.status_code == 503


async def test_closing_a_stream_cancels_it(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    for worker in gateway.pool.workers:
        worker.script = lambda request: ids_of("word " * 300)
        worker.step_s = 0.02
    stream = await client.chat.completions.create(model="tiny", messages=[USER], stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: gateway.server.relay.num_live == 0, 2.0)
    await until(lambda: all(worker.is_idle for worker in gateway.pool.workers), 2.0)
