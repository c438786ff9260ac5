"""smolagents: calls of tools that a grammar demands, and steps that are Python code; whole and streamed."""

import json
from typing import Any

from addition_task import LIMIT, Task, Total, add, call, run, script, url
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from smolagents.monitoring import LogLevel

TOOLS = [tool(add)]


def agent(kind: Any, is_streamed: bool) -> Any:
    model = OpenAIModel("scripted", api_base=url, api_key="unused", max_tokens=600)
    return kind(TOOLS, model, max_steps=LIMIT, stream_outputs=is_streamed, verbosity_level=LogLevel.OFF)


def tools(task: Task, is_streamed: bool = False) -> Any:
    last = call("final_answer", answer=json.dumps(task.total))
    answer = agent(ToolCallingAgent, is_streamed).run("Add them. " + script(*task.adding(), last))
    return Total.model_validate_json(answer)


def code(task: Task, is_streamed: bool = False) -> Any:
    steps = [f"print(add(a={a}, b={b}))" for a, b in task.calls]
    steps.append(f"final_answer({task.total!r})")
    answers = [f"Thought: I go on.\n<code>\n{step}\n</code>" for step in steps]
    return agent(CodeAgent, is_streamed).run("Add them. " + script(*answers))


run(
    tools=tools,
    tools_streamed=lambda task: tools(task, is_streamed=True),
    code=code,
    code_streamed=lambda task: code(task, is_streamed=True),
)
