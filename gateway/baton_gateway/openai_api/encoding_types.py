"""Typed requests for embeddings, scores and labels: every field has bounds, and unknown fields are refused.

`requests.encode_plan` checks what depends on the model: what it makes of a prompt, and how wide its vectors are.
"""

from __future__ import annotations

import enum
from typing import Any

from baton_gateway.errors import invalid
from baton_gateway.openai_api.openai_fields import MAX_TEXT_CHARS, Fields, UnknownFields, check_text, wrong_type
from baton_gateway.openai_api.openai_types import CompletionRequest, read_plain_options, read_token_ids
from baton_wire.messages.encoding import MAX_WIDTH

MAX_INPUTS = 2_048
MAX_INSTRUCTION_CHARS = 8_192
_INPUTS = "a string, a list of strings, a list of token ids, or a list of such lists"

Input = str | tuple[int, ...]


class EncodeTask(enum.Enum):
    """The result that a request wants of its inputs."""

    EMBED = "embed"
    SCORE = "score"
    RERANK = "rerank"
    CLASSIFY = "classify"


class EncodeRequest(CompletionRequest, frozen=True):
    """A request without an answer in text. Its inputs are `prompts`, its options those of a completion's prompt."""

    task: EncodeTask = EncodeTask.EMBED
    fields: tuple[str, ...] = ()
    """The request's field of each input."""
    dimensions: int | None = None
    is_normalised: bool | None = None
    is_base64: bool = False
    prompt_name: str | None = None
    """The name of the model's prompt that comes before each input."""
    instruction: str | None = None
    """A text before each input; in scores of pairs what the model should judge."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Places of the two inputs of each pair to score."""
    top_n: int | None = None
    returns_documents: bool = False


def parse_embedding(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> EncodeRequest:
    """Parse the body of an embeddings request. Raises RefusedError that names the offending field."""
    fields = Fields(raw)
    inputs, names = _inputs(fields.require("input"), "input")
    encoding = fields.take("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise invalid("encoding_format", "'encoding_format' must be 'float' or 'base64'.")
    prompt_name, prompt = fields.text("prompt_name", 64), fields.text("prompt", MAX_INSTRUCTION_CHARS)
    if prompt_name is not None and prompt is not None:
        raise invalid("prompt", "'prompt' and 'prompt_name' exclude each other.")
    for field, value in (("prompt", prompt), ("prompt_name", prompt_name)):
        if value is not None and not all(isinstance(text, str) for text in inputs):
            raise invalid(field, f"'{field}' needs inputs that are texts: token ids are used as they are.")
    dimensions = fields.integer("dimensions", 1, MAX_WIDTH)
    is_normalised = fields.flag("normalize", False) if raw.get("normalize") is not None else None
    options = read_plain_options(fields, unknown)
    return EncodeRequest(
        *(options, inputs, False, EncodeTask.EMBED, names),
        dimensions=dimensions,
        is_normalised=is_normalised,
        is_base64=encoding == "base64",
        prompt_name=prompt_name,
        instruction=prompt,
    )


def parse_classification(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> EncodeRequest:
    """Parse the body of a classification. Raises RefusedError that names the offending field."""
    fields = Fields(raw)
    inputs, names = _inputs(fields.require("input"), "input")
    options = read_plain_options(fields, unknown)
    return EncodeRequest(options, inputs, False, EncodeTask.CLASSIFY, names)


def parse_score(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> EncodeRequest:
    """Parse the body of a request for scores of pairs: one text with each of the others, or two lists in step. Raises
    RefusedError that names the offending field."""
    fields = Fields(raw)
    lefts, left_names = _texts(fields.require("text_1"), "text_1")
    rights, right_names = _texts(fields.require("text_2"), "text_2")
    if len(lefts) not in (1, len(rights)):
        raise invalid("text_2", f"'text_2' has {len(rights)} texts; 'text_1' must have one or as many.")
    instruction = fields.text("instruction", MAX_INSTRUCTION_CHARS)
    options = read_plain_options(fields, unknown)
    pairs = tuple((0 if len(lefts) == 1 else place, len(lefts) + place) for place in range(len(rights)))
    return EncodeRequest(
        *(options, (*lefts, *rights), False, EncodeTask.SCORE, (*left_names, *right_names)),
        instruction=instruction,
        pairs=pairs,
    )


def parse_rerank(
    raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE, *, returns_documents: bool = True
) -> EncodeRequest:
    """Parse the body of a reranking. `returns_documents`: without the field. Raises RefusedError that names the
    offending field."""
    fields = Fields(raw)
    (query,), _ = _texts(_one_text(fields.require("query"), "query"), "query")
    documents, names = _texts(_document_texts(fields.require("documents")), "documents")
    top_n = fields.integer("top_n", 1, MAX_INPUTS)
    returns = fields.flag("return_documents", returns_documents)
    instruction = fields.text("instruction", MAX_INSTRUCTION_CHARS)
    for field in ("max_chunks_per_doc", "max_tokens_per_doc", "rank_fields", "overlap_tokens"):
        fields.refuse(field, "documents are ranked as they are sent")
    options = read_plain_options(fields, unknown)
    return EncodeRequest(
        *(options, (query, *documents), False, EncodeTask.RERANK, ("query", *names)),
        instruction=instruction,
        pairs=tuple((0, place + 1) for place in range(len(documents))),
        top_n=top_n,
        returns_documents=returns,
    )


def _inputs(value: Any, field: str) -> tuple[tuple[Input, ...], tuple[str, ...]]:
    """The inputs and the field of each. Raises RefusedError."""
    if isinstance(value, str):
        return _texts(value, field)
    if not isinstance(value, list):
        raise wrong_type(field, _INPUTS)
    if not value:
        raise invalid(field, f"'{field}' must not be an empty list.", "empty_prompt")
    if not isinstance(value[0], str | list):
        return (read_token_ids(value, field),), (field,)
    _check_count(value, field)
    names = tuple(f"{field}[{place}]" for place in range(len(value)))
    return tuple(_input(entry, name) for entry, name in zip(value, names, strict=True)), names


def _input(value: Any, field: str) -> Input:
    if isinstance(value, list):
        return read_token_ids(value, field)
    if not isinstance(value, str):
        raise wrong_type(field, "a string or a list of token ids")
    return _text(value, field)


def _one_text(value: Any, field: str) -> Any:
    if isinstance(value, dict) and set(value) == {"text"}:
        value = value["text"]
    if not isinstance(value, str):
        raise wrong_type(field, "a string")
    return value


def _document_texts(value: Any) -> Any:
    """Documents as Cohere and Jina have them: texts, or objects with one."""
    if not isinstance(value, list):
        raise wrong_type("documents", "a list of strings, or of objects with a 'text'")
    return [_one_text(entry, f"documents[{place}]") for place, entry in enumerate(value)]


def _texts(value: Any, field: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(value, str):
        return (_text(value, field),), (field,)
    if not isinstance(value, list):
        raise wrong_type(field, "a string or a list of strings")
    if not value:
        raise invalid(field, f"'{field}' must not be an empty list.", "empty_prompt")
    _check_count(value, field)
    names = tuple(f"{field}[{place}]" for place in range(len(value)))
    return tuple(_text(entry, name) for entry, name in zip(value, names, strict=True)), names


def _text(value: Any, field: str) -> str:
    text = check_text(value, field, MAX_TEXT_CHARS)
    if not text:
        raise invalid(field, f"'{field}' must not be empty.", "empty_prompt")
    return text


def _check_count(value: list[Any], field: str) -> None:
    if len(value) > MAX_INPUTS:
        raise invalid(field, f"'{field}' has {len(value)} entries; at most {MAX_INPUTS} are allowed.", "too_long")
