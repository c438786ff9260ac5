"""Blocks of `/v1/messages` that are text, or that a template can only show as text: found tools, search results, texts.

Clients keep such blocks in their conversations, so a refused one would end the conversation for good.
"""

from __future__ import annotations

from typing import Any

from baton_gateway.errors import unsupported
from baton_gateway.openai_api.openai_fields import (
    BESIDE_TEXTS,
    MAX_IGNORED_BYTES,
    MAX_TEXT_CHARS,
    Fields,
    check_text,
    wrong_type,
)
from baton_gateway.openai_api.tool_fields import check_tool_name

TEXT_BLOCKS = ("text", "tool_reference", "search_result", "document")


def read_text_block(value: Any, path: str) -> str:
    """Read a block of one of these types. Raises RefusedError."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    kind = fields.require("type")
    if kind not in TEXT_BLOCKS:
        raise unsupported(f"{path}.type", f"only text is available here, not {str(kind)[:32]!r}")
    text = _READERS[kind](fields, path)
    fields.ignore("citations", "parsed_output", "caller", *BESIDE_TEXTS, max_bytes=MAX_TEXT_CHARS)
    fields.end()
    return text


def _text(fields: Fields, path: str) -> str:
    return check_text(fields.require("text"), f"{path}.text", MAX_TEXT_CHARS)


def _tool_reference(fields: Fields, path: str) -> str:
    """Name a tool that a client's search of tools found. Its definition is in `tools`, deferred or not."""
    name = check_tool_name(fields.require("tool_name"), f"{path}.tool_name")
    return f"Tool available: {name}"


def _search_result(fields: Fields, path: str) -> str:
    head = [fields.text(name, MAX_TEXT_CHARS) for name in ("title", "source")]
    return "\n".join((*filter(None, head), *_texts(fields.require("content"), f"{path}.content")))


def _document(fields: Fields, path: str) -> str:
    """Read a document that is text; others are refused."""
    head = [fields.text(name, MAX_TEXT_CHARS) for name in ("title", "context")]
    source = fields.require("source")
    if not isinstance(source, dict):
        raise wrong_type(f"{path}.source", "an object")
    inner = Fields(source, f"{path}.source.")
    kind = inner.require("type")
    if kind not in ("text", "content"):
        raise unsupported(inner.name("type"), f"only documents of text are available, not {str(kind)[:32]!r}")
    content = inner.require("data" if kind == "text" else "content")
    inner.ignore("media_type", max_bytes=MAX_IGNORED_BYTES)
    inner.end()
    return "\n".join((*filter(None, head), *_texts(content, inner.name("data" if kind == "text" else "content"))))


def _texts(value: Any, path: str) -> list[str]:
    """Read a text, or blocks that are all text."""
    if isinstance(value, str):
        return [check_text(value, path, MAX_TEXT_CHARS)]
    if not isinstance(value, list):
        raise wrong_type(path, "a string or a list of text blocks")
    texts = []
    for index, block in enumerate(value):
        place = f"{path}[{index}]"
        if isinstance(block, dict) and block.get("type") != "text":
            raise unsupported(f"{place}.type", f"only text is available here, not {str(block.get('type'))[:32]!r}")
        texts.append(read_text_block(block, place))
    return texts


_READERS = {"text": _text, "tool_reference": _tool_reference, "search_result": _search_result, "document": _document}
