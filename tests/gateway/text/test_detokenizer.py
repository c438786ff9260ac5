"""Text out of token ids, one by one, against the tokenizers library decoding all of them at once."""

from __future__ import annotations

import re
from functools import cache
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from baton_gateway.text.detokenizer import ByteLevelDetokenizer, SentencePieceDetokenizer, WindowDetokenizer
from baton_gateway.text.revision_text import Shown, TextModel, load_text_model
from baton_gateway.text.token_pieces import decoder_of, piece_table, special_tokens
from baton_testing.gateway.made_tokenizers import (
    SENTENCES,
    MadeTokenizer,
    bundle_hash,
    byte_level,
    metaspace,
    sentencepiece,
    word_pieces,
)

MAKERS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace, "word_pieces": word_pieces}
EXACT = [name for name in MAKERS if name != "sentencepiece"]
WORDS = ["the", " baton", "é", "東京", "🏃‍♀️", "\n", "  ", "a", "Ωmega", "<|end|>", "\u200d", "𝕏", "."]


@cache
def make(name: str) -> MadeTokenizer:
    return MAKERS[name]()


@cache
def model(name: str) -> TextModel:
    data = make(name).bundle()
    return load_text_model(data, bundle_hash(data))


def streamed(name: str, ids: list[int], skip_special: bool = True, continues: bool = False) -> list[str]:
    """The increments, the last one flushed."""
    text = model(name).choice_text((), skip_special, continues)._detokenizer
    return [text.push(token) for token in ids] + [text.flush()]


def whole(name: str, ids: list[int], skip_special: bool = True) -> str:
    return str(make(name).tokenizer.decode(ids, skip_special_tokens=skip_special))


def ids_of(name: str) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, make(name).tokenizer.get_vocab_size() + 3), max_size=24)


def test_the_families_are_told_apart() -> None:
    kinds = {name: type(model(name).choice_text((), True, False)._detokenizer) for name in MAKERS}
    assert kinds == {
        "byte_level": ByteLevelDetokenizer,
        "sentencepiece": SentencePieceDetokenizer,
        "metaspace": SentencePieceDetokenizer,
        "word_pieces": WindowDetokenizer,
    }


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("name", EXACT)
@given(data=st.data())
@settings(max_examples=150)
def test_random_ids_give_the_text_of_all_of_them(name: str, skip_special: bool, data: st.DataObject) -> None:
    ids = data.draw(ids_of(name))
    assert "".join(streamed(name, ids, skip_special)) == whole(name, ids, skip_special)


@given(data=st.data())
@settings(max_examples=300)
def test_random_ids_with_byte_tokens_keep_the_characters_that_were_complete(data: st.DataObject) -> None:
    ids = data.draw(ids_of("sentencepiece"))
    assert "".join(streamed("sentencepiece", ids)) == _sentencepiece_text(ids)


def _sentencepiece_text(ids: list[int]) -> str:
    """The library's text, but for runs of byte tokens that are not UTF-8 to their end, of which it keeps nothing."""
    tokenizer = make("sentencepiece").tokenizer
    tokens = [tokenizer.id_to_token(token) for token in ids]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    text = ""
    run = b""
    for token in [*(token for token in tokens if token and token not in special), ""]:
        if byte := re.fullmatch("<0x(..)>", token):
            run += bytes([int(byte[1], 16)])
            continue
        text += _run_text(run) + token.replace("▁", " ")
        run = b""
    return text.removeprefix(" ")


def _run_text(run: bytes) -> str:
    for end in range(len(run), -1, -1):
        try:
            return run[:end].decode() + "\ufffd" * (len(run) - end)
        except UnicodeDecodeError:
            continue
    return ""


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace"])
@given(words=st.lists(st.sampled_from([*WORDS, *SENTENCES]), max_size=8))
def test_real_text_is_the_librarys(name: str, words: list[str]) -> None:
    ids = make(name).tokenizer.encode("".join(words)).ids
    assert "".join(streamed(name, ids)) == whole(name, ids)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
@given(words=st.lists(st.sampled_from(WORDS), max_size=8))
def test_no_increment_breaks_a_character(name: str, words: list[str]) -> None:
    text = "".join(words).replace("<|end|>", "")
    parts = streamed(name, make(name).tokenizer.encode(text, add_special_tokens=False).ids)
    assert not any("\ufffd" in part for part in parts)


def test_an_incomplete_character_waits_for_its_last_byte() -> None:
    ids = make("byte_level").tokenizer.encode("🏃", add_special_tokens=False).ids
    assert len(ids) == 4
    assert streamed("byte_level", ids) == ["", "", "", "🏃", ""]
    assert streamed("byte_level", ids[:3]) == ["", "", "", "\ufffd"]


def test_a_text_that_continues_a_prompt_keeps_its_first_space() -> None:
    ids = make("sentencepiece").tokenizer.encode("the fox", add_special_tokens=False).ids
    assert "".join(streamed("sentencepiece", ids)) == "the fox"
    assert "".join(streamed("sentencepiece", ids, continues=True)) == " the fox"


@pytest.mark.parametrize("name", list(MAKERS))
def test_special_tokens_are_skipped_unless_asked_for(name: str) -> None:
    ids = [make(name).id_of("<|begin|>"), *make(name).tokenizer.encode("fox", add_special_tokens=False).ids]
    assert "<|begin|>" not in "".join(streamed(name, ids))
    assert "".join(streamed(name, ids, skip_special=False)).startswith("<|begin|>")


@pytest.mark.parametrize("name", MAKERS)
def test_a_table_of_pieces_is_made_without_writing_the_whole_tokenizer_down(name: str) -> None:
    """Found with a vocabulary of 128,000: that held the gateway's event loop for a second, twice."""

    class Asked:
        def __init__(self) -> None:
            self.names: list[str] = []

        def __getattr__(self, attribute: str) -> object:
            self.names.append(attribute)
            return getattr(make(name).tokenizer, attribute)

    asked = cast(Tokenizer, (asking := Asked()))
    special = special_tokens(asked)
    table, whole = (
        piece_table(decoder_of(asked), asked.id_to_token, frozenset(special)),
        model(name).pieces[Shown.NOTHING],
    )
    assert "to_str" not in asking.names
    assert (table is None) is (whole.table is None) is (name == "word_pieces")
    added = make(name).tokenizer.get_added_tokens_decoder()
    assert special == {token: entry.content for token, entry in added.items() if entry.special}
    assert whole.hidden_ids == set(special)
    assert table is None or all(table.piece(token).is_skipped for token in special)
