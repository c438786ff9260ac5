"""pydantic-ai: tools with native output over two APIs, whole and streamed, and over Anthropic's."""

from typing import Any

from addition_task import Task, Total, add, endpoint, run, url
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="unused", max_retries=0))
claude = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=endpoint, api_key="unused", max_retries=0))
chats = OpenAIChatModel("scripted", provider=provider)
responses = OpenAIResponsesModel("scripted", provider=provider)
messages = AnthropicModel("scripted", provider=claude, settings={"max_tokens": 300})


async def whole(model: Any, task: Task) -> Any:
    return (await Agent(model, tools=[add], output_type=NativeOutput(Total)).run(task.question)).output


async def streamed(model: Any, task: Task) -> Any:
    async with Agent(model, tools=[add], output_type=NativeOutput(Total)).run_stream(task.question) as stream:
        return await stream.get_output()


async def anthropic(task: Task) -> Any:
    return Total.model_validate_json((await Agent(messages, tools=[add]).run(task.question)).output)


run(
    chat=lambda task: whole(chats, task),
    chat_streamed=lambda task: streamed(chats, task),
    responses=lambda task: whole(responses, task),
    responses_streamed=lambda task: streamed(responses, task),
    anthropic=anthropic,
)
