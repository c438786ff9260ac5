"""pydantic-ai: tools with native output and with an output tool, over three APIs, whole and streamed."""

import asyncio
from typing import Any

from addition_task import Total, add, endpoint, outcome, question, report, url
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


async def main() -> None:
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="unused", max_retries=0))
    claude = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=endpoint, api_key="unused", max_retries=0))
    models: dict[str, Any] = {
        "chat": OpenAIChatModel("scripted", provider=provider),
        "responses": OpenAIResponsesModel("scripted", provider=provider),
        "anthropic": AnthropicModel("scripted", provider=claude, settings={"max_tokens": 300}),
    }
    ways: dict[str, Any] = {}
    for name, model in models.items():
        native = Total if name == "anthropic" else NativeOutput(Total)
        if name == "anthropic":
            agent: Any = Agent(model, tools=[add])
            ways[name] = outcome(Total.model_validate_json((await agent.run(question)).output))
            continue
        agent = Agent(model, tools=[add], output_type=native)
        ways[name] = outcome((await agent.run(question)).output)
        async with agent.run_stream(question) as stream:
            ways[f"{name}_streamed"] = outcome(await stream.get_output())
    report(**ways)


asyncio.run(main())
