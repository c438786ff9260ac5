"""LlamaIndex: a streaming agent that calls functions, and one that writes its steps as text (ReAct)."""

import json
from typing import Any

from addition_task import LIMIT, Task, Total, add, call, run, script, url
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

TOOL = FunctionTool.from_defaults(add)


def model(**fields: Any) -> OpenAILike:
    return OpenAILike(
        model="scripted", api_base=url, api_key="unused", context_window=4_096, is_chat_model=True, max_retries=0,
        max_tokens=600, **fields,
    )  # fmt: skip


async def functions(task: Task, is_streamed: bool = True) -> Any:
    """Calls, a sentence, and then a call of a function whose arguments are the answer."""
    llm = model(is_function_calling_model=True)

    async def total(messages: list[ChatMessage]) -> Any:
        asked = [*messages, ChatMessage(role="user", content="And the total?")]
        return (await llm.as_structured_llm(Total).achat(asked)).raw.model_dump()

    agent = FunctionAgent(
        tools=[TOOL], llm=llm, structured_output_fn=total, streaming=is_streamed, system_prompt="You add."
    )
    question = "Add them. " + script(*task.adding(), "Done.", call("Total", **task.total))
    handler = agent.run(question, max_iterations=LIMIT)
    async for _ in handler.stream_events():
        pass
    return (await handler).structured_response


async def react(task: Task) -> Any:
    """Steps that are text, and an answer that is JSON."""
    steps = [f'Thought: I add.\nAction: add\nAction Input: {{"a": {a}, "b": {b}}}' for a, b in task.calls]
    last = f"Thought: I can answer.\nAnswer: {json.dumps(task.total)}"
    agent = ReActAgent(tools=[TOOL], llm=model())
    result = await agent.run("Add them. " + script(*steps, last), max_iterations=LIMIT)
    return Total.model_validate_json(str(result.response.content))


run(functions=lambda task: functions(task, is_streamed=False), functions_streamed=functions, react=react)
