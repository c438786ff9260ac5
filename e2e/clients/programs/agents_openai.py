"""openai-agents: tools with an output type, over chats and over responses, whole and streamed."""

from typing import Any

from addition_task import LIMIT, Task, Total, add, run, url
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)


def agent(kind: Any) -> Any:
    return Agent(
        name="sums", instructions="Add.", tools=[function_tool(add)], output_type=Total,
        model=kind("scripted", openai_client=client),
    )  # fmt: skip


async def whole(kind: Any, task: Task) -> Any:
    return (await Runner.run(agent(kind), task.question, max_turns=LIMIT)).final_output


async def streamed(kind: Any, task: Task) -> Any:
    stream = Runner.run_streamed(agent(kind), task.question, max_turns=LIMIT)
    async for _ in stream.stream_events():
        pass
    return stream.final_output


run(
    chat=lambda task: whole(OpenAIChatCompletionsModel, task),
    chat_streamed=lambda task: streamed(OpenAIChatCompletionsModel, task),
    responses=lambda task: whole(OpenAIResponsesModel, task),
    responses_streamed=lambda task: streamed(OpenAIResponsesModel, task),
)
