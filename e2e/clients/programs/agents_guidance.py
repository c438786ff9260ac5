"""guidance: each step is JSON by a schema; over its OpenAI model, and over its vLLM model with a grammar of its own."""

import json
from typing import Any

import guidance
from addition_task import LIMIT, SCHEMA, Task, Total, add, run, script, url
from guidance.models.experimental import VLLMModel

TOTAL = Total.model_json_schema() | {"required": ["total", "note"]}
STEP: dict[str, Any] = {
    "type": "object", "properties": {"action": {"anyOf": [SCHEMA, TOTAL]}}, "required": ["action"],
    "additionalProperties": False,
}  # fmt: skip


def loop(task: Task, model: Any) -> Any:
    steps = [*({"action": {"a": a, "b": b}} for a, b in task.calls), {"action": task.total}]
    prompt = "Add them. " + script(*map(json.dumps, steps))
    for turn in range(LIMIT):
        with guidance.user():
            model += prompt
        with guidance.assistant():
            model += guidance.json(name=f"step{turn}", schema=STEP)
        action = json.loads(model[f"step{turn}"])["action"]
        if "total" in action:
            return action
        prompt = f"The sum is {add(action['a'], action['b'])}."
    return None


def over_openai(task: Task) -> Any:
    return loop(task, guidance.models.OpenAI("scripted", base_url=url, api_key="unused", echo=False))


def over_vllm(task: Task) -> Any:
    return loop(task, VLLMModel("scripted", base_url=url, api_key="unused", echo=False))


run(openai=over_openai, vllm=over_vllm)
