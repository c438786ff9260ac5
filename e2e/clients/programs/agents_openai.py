"""openai-agents: tools with an output type, over chats and over responses, whole and streamed."""

import asyncio
from typing import Any

from addition_task import Total, add, outcome, question, report, url
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


async def main() -> None:
    client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
    ways: dict[str, Any] = {}
    for name, kind in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        agent = Agent(
            name="sums", instructions="Add.", tools=[function_tool(add)], output_type=Total,
            model=kind("scripted", openai_client=client),
        )  # fmt: skip
        ways[name] = outcome((await Runner.run(agent, question, max_turns=20)).final_output)
        streamed = Runner.run_streamed(agent, question, max_turns=20)
        async for _ in streamed.stream_events():
            pass
        ways[f"{name}_streamed"] = outcome(streamed.final_output)
    report(**ways)


asyncio.run(main())
