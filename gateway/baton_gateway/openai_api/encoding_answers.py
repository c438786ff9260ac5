"""Collects the results of encoded prompts, and encodes the answers of embeddings, scores, rankings and labels."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.errors import Problem, RefusedError, internal_error, out_of_memory
from baton_gateway.openai_api.answer_writers import ChargeMemory
from baton_gateway.openai_api.encoding_types import EncodeRequest
from baton_gateway.openai_api.json_pieces import EncodedJson, JsonBytes
from baton_gateway.openai_api.logprob_json import CompletionLogprobs
from baton_gateway.openai_api.response_encoding import AnswerHead, Usage
from baton_gateway.text.choice_text import Increment
from baton_wire.messages.encoding import FLOAT_BYTES, unpack_floats

FLOAT_CHARS = 22
"""Most characters of one value as JSON, with its comma."""
_encode = msgspec.json.Encoder().encode


class EncodingWriter:
    """Collects the result of each prompt. `done` resolves to the usage or the problem."""

    def __init__(self, charge: ChargeMemory) -> None:
        self.done: asyncio.Future[Usage | Problem] = asyncio.get_running_loop().create_future()
        self.head: AnswerHead | None = None
        self._charge = charge
        self._results: dict[int, bytes] = {}

    def begin(self, answer: AnswerHead) -> None:
        if not self._charge(answer.ahead_bytes):
            raise RefusedError(out_of_memory())
        self.head = answer
        self._results.clear()

    def encoded(self, prompt: int, values: bytes) -> None:
        self._results[prompt] = values

    def results(self) -> list[bytes]:
        """The packed results in the order of the prompts."""
        return [self._results[prompt] for prompt in range(len(self._results))]

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        raise AssertionError("encoded prompts have no log probabilities")

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        raise AssertionError("encoded prompts are not echoed")

    def increment(self, choice: int, increment: Increment) -> None:
        raise AssertionError("encoded prompts have no answer")

    def flush(self) -> None:
        pass

    def end(self, problem: Problem | None, usage: Usage) -> None:
        if self.done.done():
            return
        missing = self.head is None or len(self._results) != self.head.num_choices
        self.done.set_result(problem or (internal_error() if missing else usage))


def answer_size(request: EncodeRequest, prompts: int, width: int) -> int:
    """Bytes that the results and the answer take."""
    a_value = FLOAT_CHARS if not request.is_base64 else 2 * FLOAT_BYTES
    texts = sum(map(len, request.prompts)) if request.returns_documents else 0
    return prompts * width * (FLOAT_BYTES + (a_value if not request.pairs else 0)) + 4 * texts


def embedding_body(head: AnswerHead, results: Sequence[bytes], is_base64: bool, usage: Usage) -> list[JsonBytes]:
    """OpenAI's list of embeddings, in pieces."""
    pieces: list[JsonBytes] = [b'{"object":"list","data":[']
    for place, packed in enumerate(results):
        if is_base64:
            values = b'"' + base64.b64encode(packed) + b'"'
        else:
            values = _encode(unpack_floats(packed).tolist())
        comma = b"," if place else b""
        pieces += [comma + b'{"object":"embedding","index":%d,"embedding":' % place, values, b"}"]
    tail = {"model": head.head.model, "usage": _usage(usage), "id": head.head.id, "created": head.head.created}
    return [*pieces, b"]," + _encode(tail)[1:]]


def score_body(head: AnswerHead, scores: Sequence[float], usage: Usage) -> list[JsonBytes]:
    """vLLM's list of scores."""
    data = [{"index": place, "object": "score", "score": score} for place, score in enumerate(scores)]
    return [_encode(_list(head, data, usage))]


def rerank_body(head: AnswerHead, request: EncodeRequest, scores: Sequence[float], usage: Usage) -> list[JsonBytes]:
    """The ranking in the shape of Cohere and Jina: best first."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    results: list[dict[str, Any]] = []
    for place in order[: request.top_n]:
        result: dict[str, Any] = {"index": place, "relevance_score": scores[place]}
        if request.returns_documents:
            result["document"] = {"text": request.prompts[place + 1]}
        results.append(result)
    body = {"id": head.head.id, "model": head.head.model, "results": results, "usage": _usage(usage)}
    return [_encode(body)]


def classification_body(
    head: AnswerHead, rows: Sequence[Sequence[float]], labels: Sequence[str], usage: Usage
) -> list[JsonBytes]:
    """vLLM's list of labels."""
    data = []
    for place, probabilities in enumerate(rows):
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        label = labels[best] if best < len(labels) else f"LABEL_{best}"
        count = len(probabilities)
        data.append({"index": place, "label": label, "probs": list(probabilities), "num_classes": count})
    return [_encode(_list(head, data, usage))]


def _list(head: AnswerHead, data: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    return {
        "id": head.head.id,
        "object": "list",
        "created": head.head.created,
        "model": head.head.model,
        "data": data,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
