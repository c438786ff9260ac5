"""Matchers with cached texts allow the same tokens as matchers of the tokenizer itself."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from baton_engine.grammars.cached_tokenizer import LONGEST_TEXT, MOST_TEXTS, cache_texts
from baton_engine.grammars.vocabulary import ids_in, read_vocabulary
from baton_testing.engine.grammars import NO_FORCING, of_spaced
from baton_testing.engine.random_grammars import random_schema
from baton_testing.engine.tiny_llama import FOLDER
from baton_testing.gateway.made_tokenizers import byte_level, sentencepiece

FORCING = ""
TINY = (FOLDER / "tokenizer.json").read_text()
FILES = {
    "tiny-llama": TINY,
    "byte level": byte_level().tokenizer.to_str(),
    "sentencepiece": sentencepiece().tokenizer.to_str(),
}
PADDING = 40


@pytest.mark.parametrize("name", FILES)
def test_every_id_is_what_the_tokenizer_itself_says(name: str) -> None:
    size = LLTokenizer(FILES[name]).vocab_size + PADDING
    own, kept = LLTokenizer(FILES[name], n_vocab=size), read_vocabulary(FILES[name], (), size).tokenizer
    assert (kept.vocab_size, kept.eos_tokens, kept.is_canonical) == (size, own.eos_tokens, own.is_canonical)
    for token in range(size):
        assert kept.dbg_tokens([token]) == own.dbg_tokens([token])
        assert kept.decode_bytes([token]) == own.decode_bytes([token])
        assert kept.is_special_token(token) == own.is_special_token(token)


@pytest.mark.parametrize("head", [FORCING, NO_FORCING], ids=["certain text", "any ids"])
@pytest.mark.parametrize("name", FILES)
def test_masks_are_those_of_the_tokenizer_itself_at_every_prefix(name: str, head: str) -> None:
    own, vocabulary = LLTokenizer(FILES[name]), read_vocabulary(FILES[name], (), 0)
    chance, only_one = random.Random(31), 0
    for _ in range(25):
        names = chance.sample(["name", "a name that is longer", 'q"', "é", "naïve"], 3)
        schema = {
            "type": "object",
            "properties": {name: random_schema(chance, 1)[0] for name in names},
            "required": names,
        }
        grammar = of_spaced(schema, None, head)
        matchers = [LLMatcher(tokenizer, grammar.definition, log_level=0) for tokenizer in (own, vocabulary.tokenizer)]
        for _ in range(60):
            masks = np.zeros((2, vocabulary.words), dtype=np.uint32)
            for matcher, mask in zip(matchers, masks, strict=True):
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            assert (masks[0] == masks[1]).all(), json.dumps(schema)
            allowed = ids_in(masks[0])
            only_one += len(allowed) == 1
            token = chance.choice(allowed)
            if token in vocabulary.end_ids:
                break
            assert all([matcher.consume_token(token) for matcher in matchers])
    assert only_one > 20 or head == NO_FORCING, "texts that are certain"


def test_few_texts_are_kept_and_no_long_one() -> None:
    asked: list[bytes] = []

    def spell(text: bytes) -> list[int]:
        asked.append(text)
        return list(text)

    spelled, long = cache_texts(spell), b"a" * (LONGEST_TEXT + 1)
    for text in (b"name", b"name", long, long, b"name"):
        assert spelled(text) == list(text)
    assert asked == [b"name", long, long]
    for number in range(MOST_TEXTS):
        spelled(b"%d" % number)
    asked.clear()
    spelled(b"name")
    assert asked == [b"name"], "forgotten, with all that was kept by then"
