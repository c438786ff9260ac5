"""dspy: ReAct with steps that are text and steps that are JSON by a schema.

Each of its requests has one message with all steps so far, so the tool's results script the answer after them.
"""

import json
from collections.abc import Callable
from typing import Any

import dspy
from addition_task import Task, Total, add, run, script, url

MODEL = dspy.LM("openai/scripted", api_base=url, api_key="unused", cache=False, num_retries=0, max_tokens=600)


class Adding(dspy.Signature):  # type: ignore[misc]  # a class without types
    """Add the numbers."""

    question: str = dspy.InputField()
    answer: Total = dspy.OutputField()


def as_text(**fields: Any) -> str:
    written = (f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}\n" for name, value in
               fields.items())  # fmt: skip
    return "\n".join((*written, "[[ ## completed ## ]]"))


def as_json(**fields: Any) -> str:
    return json.dumps(fields)


def react(task: Task, adapter: Any, write: Callable[..., str]) -> Any:
    steps = [write(next_thought="I add.", next_tool_name="add", next_tool_args={"a": a, "b": b}) for a, b in task.calls]
    answers = iter([*steps, write(reasoning="I have added.", answer=task.total)])
    question = "Add them. " + script(next(answers))

    def scripting_add(a: int, b: int) -> str:
        """Add two numbers."""
        return f"{add(a, b)} {script(next(answers))}"

    tool = dspy.Tool(scripting_add, name="add")
    with dspy.context(lm=MODEL, adapter=adapter):
        return dspy.ReAct(Adding, tools=[tool], max_iters=len(task.calls))(question=question).answer


run(
    text=lambda task: react(task, dspy.ChatAdapter(use_json_adapter_fallback=False), as_text),
    json=lambda task: react(task, dspy.JSONAdapter(), as_json),
)
