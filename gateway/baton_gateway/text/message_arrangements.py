"""Arrangements of a chat's messages for templates that do not take them as they stand. Pure.

Clients send system messages anywhere, and several messages of one side in a row. Most templates render both. Others
refuse a system message that is not the first, or any, or roles that do not alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Messages = tuple[dict[str, Any], ...]


def merge_leading(messages: Sequence[dict[str, Any]]) -> Messages:
    """Merge the system messages that begin a chat."""
    count = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return (*_merged(messages[:count]), *messages[count:])


def other_arrangements(messages: Messages) -> Iterator[Messages]:
    """Yield arrangements in which a template may take the messages, the closest to their meaning first.

    Turns of one side are merged. Later system messages become turns of the user, in their places; or they are moved to
    the beginning; or all system messages become the user's.
    """
    count = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    leading, others = messages[:count], messages[count:]
    as_user = tuple(map(_as_user, others))
    tried = [messages]
    hoisted = (*leading, *(message for message in others if message["role"] == "system"))
    rest = tuple(message for message in others if message["role"] != "system")
    for arranged in (
        (*leading, *_merged(as_user)),
        (*_merged(hoisted), *_merged(rest)),
        _merged((*map(_as_user, leading), *as_user)),
        _merged((*map(_as_user, hoisted), *rest)),
    ):
        if arranged not in tried:
            tried.append(arranged)
            yield arranged


def droppable_texts(messages: Messages) -> list[str]:
    """Return the texts that some templates leave out: of a system message that is not the first, or stands alone."""
    return [
        text
        for place, message in enumerate(messages)
        if (place or len(messages) == 1) and message["role"] == "system" and (text := message["content"].strip())
    ]


def _as_user(message: dict[str, Any]) -> dict[str, Any]:
    return message if message["role"] != "system" else {"role": "user", "content": message["content"]}


def _merged(messages: Sequence[dict[str, Any]]) -> Messages:
    """Merge neighbours of one side. Calls and their results stay messages of their own."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] != "tool" and "tool_calls" not in merged[-1]:
            before = merged[-1]
            both = before | message
            for key in ("content", "reasoning_content", "thinking"):
                texts = [text for text in (before.get(key), message.get(key)) if text]
                if key in both:
                    both[key] = "\n".join(texts)
            merged[-1] = both
        else:
            merged.append(message)
    return tuple(merged)
