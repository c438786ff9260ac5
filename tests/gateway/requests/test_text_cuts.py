"""Texts to embed that are longer than their model's files read: cut as sentence-transformers' tokenizer cuts them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from baton_gateway.requests.encode_plan import cut_text
from baton_testing.gateway.made_tokenizers import byte_level
from baton_wire.messages.values import pack_ids, unpack_ids

TEXT = "A baton is handed from one runner to the next, and nobody drops it. Grüße aus Köln."
FRAMES = ("$A", "<|begin|> $A", "$A <|end|>", "<|begin|> $A <|end|>")


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("longest", [2, 3, 5, 12, 200])
def test_a_cut_text_has_the_tokens_that_truncation_leaves(frame: str, longest: int) -> None:
    made = byte_level()
    special = [(name, made.id_of(name)) for name in ("<|begin|>", "<|end|>")]
    made.tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=special)
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=made.tokenizer)
    whole, empty = (pack_ids(tokenizer(text).input_ids) for text in (TEXT, ""))
    expected = tokenizer(TEXT, truncation="longest_first", max_length=longest).input_ids
    assert list(unpack_ids(cut_text(whole, empty, longest))) == expected


def test_ids_without_the_tokenizers_own_tokens_are_cut_alone() -> None:
    assert unpack_ids(cut_text(pack_ids([5, 6, 7, 8]), pack_ids([1, 2]), 3)) == [5, 6, 7]
