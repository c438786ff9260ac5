"""Answers that follow schemas, expressions and tools, under faults: what is asked and how it is answered undisturbed.

The same service answers each request twice, alone, before the first fault: the two must be equal. Afterwards every
answer must be that one, byte for byte, whatever happens to the workers that have it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton_local.client import AnswerEnd, ClientRequest, open_session, send
from baton_testing.engine import tiny_llama
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from campaigns.faults.fleet import UpFleet
from campaigns.faults.load import REQUEST_S, Ask, choice_texts, question_of

KV_MEMORY = "4Mi"
"""KV memory of each worker: less than its concurrent answers need."""
QUESTIONS = tiny_llama.LONG_ANSWERS[20:26]
WORD: dict[str, Any] = {"type": "string", "pattern": "^[a-z]{3,8}$"}
ANIMALS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["owl", "fox", "bee"]},
        "words": {"type": "array", "items": WORD, "minItems": 12, "maxItems": 16},
        "counts": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 6, "maxItems": 6},
        "note": {"type": "string", "minLength": 30, "maxLength": 60},
    },
    "required": ["kind", "words", "counts", "note"],
    "additionalProperties": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "animals", "schema": ANIMALS, "strict": True},
        }
    },
    "expression": {"structured_outputs": {"regex": "([a-z]{2,9} ){24,30}[a-z]+\\."}},
    "tool": {
        "tools": [{"type": "function", "function": {"name": "look", "parameters": ANIMALS, "strict": True}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
}


def structured_fleet(folder: Path) -> UpFleet:
    """Two workers of each role, which all take part in every request, with little memory for KV."""
    model = tiny_llama.with_template(folder / "tiny-tools", TOOL_TEMPLATE)
    served = {"source": f"file://{model}", "servedName": "tiny", "maxContextTokens": 1024}
    return UpFleet(folder, kv_memory=KV_MEMORY, model=served, routing={"disaggregation": "Always"})


def requests() -> dict[str, list[ClientRequest]]:
    """By kind: every shape, greedily and drawn from a seed."""
    drawn: dict[str, dict[str, Any]] = {"T=0": {"temperature": 0}, "T=1": {"temperature": 1, "seed": 7}}
    return {
        f"{shape}, {name}": [question_of(question, **fields, **sampling) for question in QUESTIONS]
        for shape, fields in SHAPES.items()
        for name, sampling in drawn.items()
    }


async def structured_asks(fleet: UpFleet) -> list[Ask]:
    """Every request with the answer of the undisturbed service. Raises RuntimeError when it has two, or none."""
    choices = []
    async with open_session(REQUEST_S, fresh=True) as session:
        for kind, group in requests().items():
            for request in group:
                answers = [await send(session, f"http://{fleet.host}:{fleet.port}", request) for _ in range(2)]
                texts = {choice_texts(answer, 1) for answer in answers}
                if any(answer.end is not AnswerEnd.WHOLE for answer in answers) or len(texts) != 1:
                    raise RuntimeError(f"{kind}: {[(answer.failure, answer.detail) for answer in answers]}, {texts}")
                choices.append(Ask(kind, request, texts.pop()))
    return choices
