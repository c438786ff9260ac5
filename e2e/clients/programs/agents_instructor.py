"""instructor: each step is an object by a schema, as a call's arguments or as the answer, whole and in parts."""

import json
from typing import Any

import instructor
import openai
from addition_task import LIMIT, Task, Total, add, call, run, script, url
from pydantic import BaseModel


class Numbers(BaseModel):
    a: int
    b: int


class Step(BaseModel):
    """Numbers to add next, or the total."""

    action: Numbers | Total


def steps(task: Task) -> list[dict[str, Any]]:
    return [*({"action": {"a": a, "b": b}} for a, b in task.calls), {"action": task.total}]


def loop(task: Task, mode: instructor.Mode, answers: list[str], in_parts: bool = False) -> Any:
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="unused", max_retries=0), mode=mode)
    messages: list[Any] = [{"role": "user", "content": "Add them. " + script(*answers)}]
    for _ in range(LIMIT):
        asked: Any = {"model": "scripted", "messages": messages, "max_retries": 0}
        if in_parts:
            *_, step = client.chat.completions.create_partial(response_model=Step, **asked)
        else:
            step = client.chat.completions.create(response_model=Step, **asked)
        if not isinstance(step.action, Numbers) and step.action.__class__.__name__ == "Total":
            return step.action
        messages.append({"role": "assistant", "content": step.model_dump_json()})
        messages.append({"role": "user", "content": f"The sum is {add(step.action.a, step.action.b)}."})
    return None


def tools(task: Task, in_parts: bool = False) -> Any:
    return loop(task, instructor.Mode.TOOLS, [call("Step", **step) for step in steps(task)], in_parts)


def schema(task: Task, mode: instructor.Mode = instructor.Mode.JSON_SCHEMA, in_parts: bool = False) -> Any:
    return loop(task, mode, [json.dumps(step) for step in steps(task)], in_parts)


run(
    tools=tools,
    tools_strict=lambda task: loop(task, instructor.Mode.TOOLS_STRICT, [call("Step", **step) for step in steps(task)]),
    schema=schema,
    schema_in_parts=lambda task: schema(task, in_parts=True),
    json=lambda task: schema(task, instructor.Mode.JSON),
)
