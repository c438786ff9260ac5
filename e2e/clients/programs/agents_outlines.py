"""outlines: each step is JSON by a schema, over its OpenAI and its vLLM back ends, whole and streamed."""

import json
from typing import Any

import openai
import outlines
from addition_task import LIMIT, Task, Total, add, run, script, url
from outlines.inputs import Chat
from pydantic import BaseModel, ConfigDict


class Numbers(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int
    b: int


class Step(BaseModel):
    """Numbers to add next, or the total."""

    model_config = ConfigDict(extra="forbid")
    action: Numbers | Total


CLIENT = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)


def loop(task: Task, model: Any, is_streamed: bool = False) -> Any:
    steps = [*({"action": {"a": a, "b": b}} for a, b in task.calls), {"action": task.total}]
    chat = Chat([{"role": "user", "content": "Add them. " + script(*map(json.dumps, steps))}])
    for _ in range(LIMIT):
        answer = "".join(model.stream(chat, Step)) if is_streamed else model(chat, Step)
        step = Step.model_validate_json(answer)
        if isinstance(step.action, Total):
            return step.action
        chat.add_assistant_message(answer)
        chat.add_user_message(f"The sum is {add(step.action.a, step.action.b)}.")
    return None


def over_openai(task: Task) -> Any:
    return loop(task, outlines.from_openai(CLIENT, "scripted"))


def over_openai_streamed(task: Task) -> Any:
    return loop(task, outlines.from_openai(CLIENT, "scripted"), is_streamed=True)


def over_vllm(task: Task) -> Any:
    return loop(task, outlines.from_vllm(CLIENT, "scripted"))


def over_vllm_streamed(task: Task) -> Any:
    return loop(task, outlines.from_vllm(CLIENT, "scripted"), is_streamed=True)


run(
    openai=over_openai,
    openai_streamed=over_openai_streamed,
    vllm=over_vllm,
    vllm_streamed=over_vllm_streamed,
)
