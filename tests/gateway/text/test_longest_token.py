"""The longest token: no text has fewer tokens than its bytes divided by that bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from baton_gateway.text.longest_token import longest_token_bytes
from baton_testing.gateway.made_tokenizers import SENTENCES, SPECIAL, byte_level, metaspace, sentencepiece, word_pieces

TINY = Path(__file__).parents[3] / "examples" / "tiny-llama" / "tokenizer.json"
BYTES, PIECES = byte_level().tokenizer.to_str(), sentencepiece().tokenizer.to_str()
TEXTS = st.lists(
    st.sampled_from([*SENTENCES, *SPECIAL, " ", "\n\n", "\u1112\u1161\u11ab", "\u212a", "the"]) | st.text(max_size=20),
    max_size=20,
).map("".join)


def changed(source: str, **parts: Any) -> str:
    return json.dumps(json.loads(source) | parts)


COMPOSING = changed(BYTES, normalizer={"type": "NFC"})


@pytest.mark.parametrize("source", [BYTES, PIECES, COMPOSING, TINY.read_text()], ids=["byte", "piece", "nfc", "tiny"])
@given(text=TEXTS)
def test_no_token_stands_for_more_bytes(source: str, text: str) -> None:
    bound = longest_token_bytes(source)
    assert bound is not None
    tokens = len(_loaded(source).encode(text, add_special_tokens=False))
    assert len(text.encode()) <= tokens * bound


_TOKENIZERS: dict[str, Tokenizer] = {}


def _loaded(source: str) -> Tokenizer:
    return _TOKENIZERS.setdefault(source, Tokenizer.from_str(source))


def test_the_bound_is_the_longest_entry_of_the_vocabulary() -> None:
    assert longest_token_bytes(BYTES) == max(map(len, ["<|assistant|>", *(SPECIAL)]))
    assert longest_token_bytes(COMPOSING) == 3 * (longest_token_bytes(BYTES) or 0)


def _swallowing() -> str:
    added = json.loads(BYTES)["added_tokens"]
    return changed(BYTES, added_tokens=[*added[:-1], added[-1] | {"rstrip": True}])


@pytest.mark.parametrize(
    "make",
    [
        lambda: metaspace().tokenizer.to_str(),
        lambda: word_pieces().tokenizer.to_str(),
        lambda: changed(BYTES, normalizer={"type": "NFKC"}),
        lambda: changed(BYTES, normalizer={"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}),
        lambda: changed(BYTES, normalizer={"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}),
        lambda: changed(BYTES, pre_tokenizer={"type": "WhitespaceSplit"}),
        _swallowing,
    ],
)
def test_nothing_is_said_of_a_tokenizer_that_may_drop_text(make: Callable[[], str]) -> None:
    assert longest_token_bytes(make()) is None
