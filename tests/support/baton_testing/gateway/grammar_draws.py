"""Draws from a grammar, as a model without sense would answer: any token that it allows."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from functools import cache

from llguidance import LLMatcher, LLTokenizer

from baton_gateway.answers.formats import AnswerFormat
from baton_testing.engine.tiny_llama import FOLDER

MARKS = (
    "<tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|python_start|>", "<|python_end|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|start|>", "<|channel|>", "<|message|>", "<|call|>",
    "<|constrain|>", "</parameter>",
)  # fmt: skip
END = 4
HINTS = ("\n</parameter>\n", "</arg_value>\n", '"', "</arg_value>", "</parameter>")


@cache
def tokenizer(with_marks: bool = False) -> LLTokenizer:
    """tiny-llama's; `with_marks`: every mark of every format is a special token of it."""
    files = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    if with_marks:
        shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        files["added_tokens"] += [{"id": id_, "content": mark, **shape} for mark, id_ in tokens_of_marks()[:-1]]
    return LLTokenizer(json.dumps(files))


def tokens_of_marks() -> tuple[tuple[str, int], ...]:
    """`<|end|>` is one without us."""
    return (*((mark, 1024 + place) for place, mark in enumerate(MARKS)), ("<|end|>", END))


def with_tokens(form: AnswerFormat) -> AnswerFormat:
    """The same format with each mark that it has as a token."""
    own = form.marks(with_calls=True)
    return replace(form, tokens=tuple(pair for pair in tokens_of_marks() if any(pair[0] in mark for mark in own)))


def draw(dice: random.Random, definition: str, begin: str = "", with_marks: bool = False) -> str:
    """An answer of tokens that the grammar allows, each as likely as the others; now and then a value ends."""
    known = tokenizer(with_marks)
    matcher = LLMatcher(known, definition, log_level=0)
    ids = encoded(begin, with_marks)
    assert matcher.validate_tokens(ids) == len(ids), (begin, matcher.validate_tokens(ids), len(ids))
    assert matcher.consume_tokens(ids)
    while not matcher.is_stopped() and not (matcher.is_accepting() and dice.random() < 0.5):
        hint = encoded(dice.choice(HINTS), with_marks)
        if dice.random() < 0.2 and matcher.validate_tokens(hint) == len(hint):
            assert matcher.consume_tokens(hint)
            ids += hint
            continue
        mask = matcher.compute_bitmask()
        allowed = [place * 8 + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        ids.append(dice.choice([token for token in allowed if token < known.vocab_size]))
        assert matcher.consume_token(ids[-1])
    return decoded([token for token in ids if token != known.eos_token], with_marks)


def encoded(text: str, with_marks: bool = False) -> list[int]:
    if not with_marks:
        return [token for piece in re.split("(<)", text) for token in tokenizer().tokenize_str(piece)]
    marks = dict(tokens_of_marks())
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    return [
        token
        for piece in pieces
        for token in ([marks[piece]] if piece in marks else tokenizer(with_marks).tokenize_str(piece))
    ]


def decoded(ids: list[int], with_marks: bool = False) -> str:
    """As the gateway shows them to a reader: marks are text."""
    text, names = b"", {token: mark for mark, token in tokens_of_marks()}
    for token in ids:
        mark = names.get(token)
        text += tokenizer(with_marks).decode_bytes([token]) if mark is None else mark.encode()
    return text.decode(errors="replace")
