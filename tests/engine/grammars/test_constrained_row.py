"""Masks of one row: equal to trying every token by hand at every prefix, rebuilt from ids, around a thought."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from baton_engine.grammars.constrained_row import Allowance
from baton_engine.grammars.grammar_compiler import GrammarCompiler, GrammarError
from baton_engine.grammars.vocabulary import ids_in
from baton_testing.engine.grammars import (
    BLANK,
    END,
    NO_FORCING,
    SPECIAL,
    VOCAB,
    allowed_by,
    allowed_by_hand,
    blanks_behind,
    compiling,
    of_lark,
    of_regex,
    of_schema,
    of_spaced,
    row_of,
    sampling_of,
    token_bytes,
    vocabulary,
)
from baton_testing.engine.random_grammars import random_regex, random_schema
from baton_wire.messages.values import Grammar, Thought

START, CLOSE = 1, 2
"""Special ids of the tiny vocabulary as marks of a thought."""
TEXT = set(range(VOCAB)) - {END}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    with compiling() as made:
        yield made


def leads() -> set[int]:
    """The ids of blanks that may come between a thought and an answer."""
    return {token for token, text in enumerate(token_bytes()) if 0 < len(text) <= 4 and not text.strip(b" \n")}


def some_answer(compiler: GrammarCompiler, grammar: Grammar, chance: random.Random, length: int) -> list[int]:
    """Ids that a random model draws, at most `length`; END is the last one if the answer came to its end."""
    row, ids = row_of(compiler, sampling_of(grammar)), list[int]()
    while len(ids) < length and (not ids or ids[-1] != END):
        allowed = allowed_by(row)
        assert allowed
        ids.append(chance.choice(sorted(allowed)))
        row.take(ids[-1])
    return ids


@pytest.mark.parametrize("seed", range(60))
def test_masks_are_what_trying_every_token_by_hand_allows(compiler: GrammarCompiler, seed: int) -> None:
    chance = random.Random(seed)
    pattern = random_regex(chance)
    row, ids = row_of(compiler, sampling_of(of_regex(pattern))), list[int]()
    for _ in range(12):
        allowed = allowed_by(row)
        assert allowed == allowed_by_hand(pattern, ids), (pattern, ids)
        ids.append(chance.choice(sorted(allowed)))
        row.take(ids[-1])
        if ids[-1] == END:
            break


@pytest.mark.parametrize("seed", range(60))
def test_masks_of_schemas_are_what_trying_every_token_by_hand_allows(compiler: GrammarCompiler, seed: int) -> None:
    chance = random.Random(seed)
    schema, pattern = random_schema(chance)
    row, ids = row_of(compiler, sampling_of(of_schema(schema))), list[int]()
    for _ in range(40):
        allowed = allowed_by(row)
        assert allowed == allowed_by_hand(pattern, ids), (schema, ids)
        ids.append(chance.choice(sorted(allowed)))
        row.take(ids[-1])
        if ids[-1] == END:
            text = b"".join(token_bytes()[token] for token in ids[:-1])
            jsonschema.validate(msgspec.json.decode(text), schema)
            break


@pytest.mark.parametrize("seed", range(40))
def test_text_that_is_certain_may_be_forced_into_the_tokenizers_own_ids(compiler: GrammarCompiler, seed: int) -> None:
    """As the gateway asks for it: either the mask is what it is by hand, or it is one id of that."""
    chance = random.Random(seed)
    schema, pattern = random_schema(chance)
    row, ids = row_of(compiler, sampling_of(of_schema(schema, head=""))), list[int]()
    for _ in range(40):
        allowed, by_hand = allowed_by(row), allowed_by_hand(pattern, ids)
        assert allowed is not None
        assert allowed == by_hand or (len(allowed) == 1 and allowed < by_hand), (schema, ids)
        ids.append(chance.choice(sorted(allowed)))
        row.take(ids[-1])
        if ids[-1] == END:
            break


@pytest.mark.parametrize("head", [NO_FORCING, ""], ids=["any ids", "certain text"])
@pytest.mark.parametrize("seed", range(40))
def test_masks_of_spaced_json_are_those_by_hand_without_a_blank_too_many(
    compiler: GrammarCompiler, seed: int, head: str
) -> None:
    chance, most = random.Random(seed), random.Random(seed).choice((1, 2, 5))
    schema, pattern = random_schema(chance, blank=BLANK)
    sampling = sampling_of(of_spaced(schema, most, head))
    row, ids = row_of(compiler, sampling), list[int]()
    blank = {token for token, text in enumerate(token_bytes()) if text[:1] in (b" ", b"\t")}
    for _ in range(40):
        allowed, by_hand = allowed_by(row), allowed_by_hand(pattern, ids)
        assert allowed
        if blanks_behind(ids) >= most:
            by_hand -= blank
        assert allowed == by_hand or (head == "" and len(allowed) == 1 and allowed < by_hand), (schema, ids)
        assert allowed_by(row_of(compiler, sampling, ids)) == allowed, "rebuilt from its ids"
        likely = sorted(allowed & blank) if chance.random() < 0.7 else []
        ids.append(chance.choice(likely or sorted(allowed)))
        row.take(ids[-1])
        if ids[-1] == END:
            jsonschema.validate(msgspec.json.decode(b"".join(token_bytes()[token] for token in ids[:-1])), schema)
            break


def test_blanks_within_texts_and_without_a_bound_are_not_counted(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    space, line, quote, bracket = (token_bytes().index(text) for text in (b" ", b"\n", b'"', b"["))
    inside = row_of(compiler, sampling_of(of_spaced(schema, 2)), [bracket, quote, *[space] * 40])
    assert space in (allowed_by(inside) or ())
    endless = row_of(compiler, sampling_of(of_spaced(schema, None)), [bracket, line, *[space] * 40])
    assert space in (allowed_by(endless) or ())
    bounded = row_of(compiler, sampling_of(of_spaced(schema, 40)), [bracket, line, *[space] * 40])
    allowed = allowed_by(bounded)
    assert allowed
    assert space not in allowed
    assert quote in allowed


def test_blanks_are_counted_anew_behind_a_thought_and_along_its_opening_mark(compiler: GrammarCompiler) -> None:
    """The mark begins as an answer may: a quotation mark in it opens a text."""
    schema = {"type": "string"}
    quote, space, letter = (token_bytes().index(text) for text in (b'"', b" ", b"a"))
    sampling = sampling_of(of_spaced(schema, 1), Thought(end=(CLOSE,), start=(quote, letter, CLOSE)))
    text = row_of(compiler, sampling, [quote, letter, space, space])
    assert space in (allowed_by(text) or ()), "within a text"
    behind = row_of(compiler, sampling, [quote, letter, CLOSE, space, space, CLOSE])
    assert quote in (allowed_by(behind) or ())
    again = row_of(compiler, sampling, [quote, letter, CLOSE, space, CLOSE, quote, space, space])
    assert space in (allowed_by(again) or ())


@pytest.mark.parametrize("seed", range(20))
def test_a_row_that_is_rebuilt_from_ids_at_any_place_goes_on_alike(compiler: GrammarCompiler, seed: int) -> None:
    chance = random.Random(seed)
    grammar = of_schema(random_schema(chance)[0])
    start, budget = chance.choice([((), None), ((START,), None), ((START,), 3), ((START, 40, 41), 3), ((), 2)])
    thought = chance.choice([None, Thought(end=(CLOSE, 7), start=start, max_tokens=budget)])
    sampling = sampling_of(grammar, thought)
    row, ids = row_of(compiler, sampling), list[int]()
    for _ in range(30):
        allowed = allowed_by(row)
        again = row_of(compiler, sampling, ids)
        assert allowed_by(again) == allowed, ids
        assert again.is_free == row.is_free
        if allowed is None:
            break
        ids.append(chance.choice(sorted(allowed)))
        row.take(ids[-1])


@pytest.mark.parametrize("ends", [(END,), (END, 77), (77,)])
def test_stop_ids_are_allowed_where_the_answer_may_end_and_only_there(
    compiler: GrammarCompiler, ends: tuple[int, ...]
) -> None:
    pattern = "[a-c]{2,4}"
    row, ids = row_of(compiler, sampling_of(of_regex(pattern), stop_token_ids=(*ends, VOCAB + 99))), list[int]()
    for letter in "abca":
        expected = allowed_by_hand(pattern, ids, ends)
        assert allowed_by(row) == expected - ({77} if 77 in ends and len(ids) < 2 else set())
        ids.append(token_bytes().index(letter.encode()))
        row.take(ids[-1])
    assert allowed_by(row) == set(ends)


def test_before_min_tokens_an_answer_ends_only_where_it_must(compiler: GrammarCompiler) -> None:
    row = row_of(compiler, sampling_of(of_regex("a{1,5}"), min_tokens=3))
    letter = token_bytes().index(b"a")
    for drawn in range(5):
        allowed = allowed_by(row)
        assert allowed is not None
        assert (END in allowed) == (drawn >= 3)
        row.take(letter)
    assert allowed_by(row) == {END}
    forced = row_of(compiler, sampling_of(of_regex("a"), min_tokens=9), [letter])
    assert allowed_by(forced) == {END}, "nothing else is possible"


def test_ids_behind_the_vocabulary_are_never_allowed(compiler: GrammarCompiler) -> None:
    """A model's logits may be wider than its tokenizer, and a grammar may name ids."""
    from baton_engine.grammars.grammar_compiler import GrammarCompiler

    padded = GrammarCompiler(lambda: vocabulary(VOCAB + 70))
    try:
        row = row_of(padded, sampling_of(Grammar('{"grammars":[{"lark_grammar":"start: <[1030]> | \\"a\\""}]}')))
        assert row.words * 32 >= VOCAB + 70
        allowed = allowed_by(row)
        assert allowed == {token_bytes().index(b"a")}
    finally:
        padded.close()


def test_a_grammar_holds_from_the_first_token_unless_a_thought_is_opened(compiler: GrammarCompiler) -> None:
    sampling = sampling_of(of_regex("[ab]c"), Thought(end=(CLOSE,), start=(START,)))
    answer = allowed_by_hand("[ab]c", [])
    row = row_of(compiler, sampling)
    assert allowed_by(row) == answer | {START}
    letter = token_bytes().index(b"a")
    row.take(letter)
    assert allowed_by(row) == allowed_by_hand("[ab]c", [letter]), "no thought any more"
    row = row_of(compiler, sampling, [START])
    assert row.allowance is Allowance.TEXT
    assert allowed_by(row) == TEXT, "anything but an end"
    row.take(letter)
    row.take(CLOSE)
    assert allowed_by(row) == answer | leads(), "the grammar begins after the thought"


def test_a_blank_line_may_come_between_a_thought_and_the_answer(compiler: GrammarCompiler) -> None:
    texts = token_bytes()
    line, space, letter = (texts.index(text) for text in (b"\n", b" ", b"a"))
    blanks = leads()
    sampling = sampling_of(of_regex("[ab]c"), Thought(end=(CLOSE,), start=(START,)))
    answer = allowed_by_hand("[ab]c", [])
    assert blanks.isdisjoint(allowed_by(row_of(compiler, sampling)) or ()), "no thought was opened"
    row = row_of(compiler, sampling, [START, CLOSE])
    assert allowed_by(row) == answer | blanks
    for count, token in enumerate((line, line, space, line)):
        assert allowed_by(row) == answer | {blank for blank in blanks if len(texts[blank]) <= 4 - count}
        row.take(token)
    assert allowed_by(row) == answer, "four blanks are enough"
    begun = row_of(compiler, sampling, [START, CLOSE, line, letter])
    assert allowed_by(begun) == allowed_by_hand("[ab]c", [letter]), "the answer has begun"


def test_a_blank_with_which_an_answer_may_begin_belongs_to_the_answer(compiler: GrammarCompiler) -> None:
    space = token_bytes().index(b" ")
    sampling = sampling_of(of_regex(" ?[ab]"), Thought(end=(CLOSE,), start=(START,)))
    row = row_of(compiler, sampling, [START, CLOSE, space])
    assert allowed_by(row) == allowed_by_hand(" ?[ab]", [space])


def test_a_mark_of_several_ids_may_also_be_the_answers_beginning(compiler: GrammarCompiler) -> None:
    """`start` is written in plain letters that the grammar allows too: both go on until they part."""
    a, b, c, x = (token_bytes().index(letter) for letter in (b"a", b"b", b"c", b"x"))
    sampling = sampling_of(of_regex("abx|c"), Thought(end=(CLOSE,), start=(a, b, c)))
    row = row_of(compiler, sampling, [a, b])
    assert allowed_by(row) == {x, c}
    row.take(x)
    assert allowed_by(row) == {END}
    row = row_of(compiler, sampling, [a, b, c])
    assert row.allowance is Allowance.TEXT
    row.take(CLOSE)
    assert allowed_by(row) == allowed_by_hand("abx|c", []) | leads()
    only_mark = row_of(compiler, sampling_of(of_regex("x"), Thought(end=(CLOSE,), start=(a, b))), [a])
    assert allowed_by(only_mark) == {b}, "the answer cannot begin so: the mark is written to its end"


def test_a_mark_of_many_ids_that_no_answer_begins_with_is_gone_on_with(compiler: GrammarCompiler) -> None:
    """As where it is spelled in letters: `<`, `th`, `in`, `k`, `>`."""
    mark = (40, 41, 42, 43, 44)
    sampling = sampling_of(of_regex("c"), Thought(end=(CLOSE,), start=mark))
    for length in range(1, len(mark)):
        row = row_of(compiler, sampling, list(mark[:length]))
        assert row.failure is None
        assert allowed_by(row) == {mark[length]}
    inside = row_of(compiler, sampling, [*mark, 40, 41, 60])
    assert inside.allowance is Allowance.TEXT
    behind = row_of(compiler, sampling, [*mark, 40, CLOSE])
    assert behind.failure is None
    assert allowed_by(behind) == allowed_by_hand("c", []) | leads()


def test_a_budget_without_a_grammar_only_forces_the_end_of_the_thought(compiler: GrammarCompiler) -> None:
    row = row_of(compiler, sampling_of(None, Thought(end=(CLOSE, 7), start=(START,), max_tokens=2)))
    assert allowed_by(row) is None
    for token in (START, 50, 51):
        assert allowed_by(row) is None
        row.take(token)
    assert allowed_by(row) == {CLOSE}
    row.take(CLOSE)
    assert allowed_by(row) == {7}
    assert not row.is_free
    row.take(7)
    assert row.is_free
    assert allowed_by(row) is None
    assert row_of(compiler, sampling_of(None, Thought(end=(CLOSE,), start=(START,))), [50]).is_free


def test_a_matcher_that_gives_up_says_so_and_not_what_it_matched(compiler: GrammarCompiler) -> None:
    row = row_of(compiler, sampling_of(of_regex("secret")), [token_bytes().index(b"a")])
    assert row.allowance is Allowance.FAILED
    assert row.failure is not None
    assert "secret" not in row.failure
    for definition in ("no grammar", '{"grammars":[{"json_schema":{"type":"secret"}}]}', "{}"):
        with pytest.raises(GrammarError) as error:
            row_of(compiler, sampling_of(Grammar(definition)))
        assert "secret" not in str(error.value)


def test_answers_of_a_random_model_end_valid(compiler: GrammarCompiler) -> None:
    chance, ended = random.Random(5), 0
    for _ in range(60):
        schema, _ = random_schema(chance)
        ids = some_answer(compiler, of_schema(schema), chance, 300)
        if ids[-1] == END:
            ended += 1
            document: Any = msgspec.json.decode(b"".join(token_bytes()[token] for token in ids[:-1]))
            jsonschema.validate(document, schema)
        assert not SPECIAL & set(ids[:-1])
    assert ended > 20


FORCING = ""


@pytest.mark.parametrize("head", [NO_FORCING, FORCING], ids=["any ids", "certain text"])
@pytest.mark.parametrize(
    "text", ["<|begin|>", "<|end|>", "x<|end|>y", "<|end|><|begin|>", "<|assistant|", 'a"<|user|>"', "<|end|>é"]
)
def test_text_that_reads_like_a_mark_is_spelled_and_not_taken_for_it(head: str, text: str) -> None:
    grammars = (
        (of_schema({"const": text}, head), json.dumps(text, ensure_ascii=False)),
        (of_lark(f"start: {json.dumps(text)}", head), text),
        (of_lark(f'start: "b"? {json.dumps(text)}', head), text),
    )
    with compiling() as compiler:
        for grammar, wanted in grammars:
            for seed in range(20):
                draw, row, ids = random.Random(seed), row_of(compiler, sampling_of(grammar)), list[int]()
                while END not in ids:
                    allowed = allowed_by(row)
                    assert allowed, (ids, row.failure)
                    ids.append(draw.choice(sorted(allowed)))
                    row.take(ids[-1])
                    assert row.failure is None
                written = b"".join(token_bytes()[token] for token in ids[:-1]).decode()
                assert written.removeprefix("b") == wanted
                assert not SPECIAL & set(ids[:-1])


@pytest.mark.parametrize("seed", range(20))
def test_the_first_mask_is_what_a_matcher_would_write_and_is_left_alone(compiler: GrammarCompiler, seed: int) -> None:
    sampling = sampling_of(of_schema(random_schema(random.Random(seed))[0]))
    row, other = row_of(compiler, sampling), row_of(compiler, sampling)
    first = row.first_mask
    assert first is not None
    known = first.copy()
    allowed = allowed_by(other)  # asks a matcher
    assert other.first_mask is None, "its matcher is there, so it is the one to ask"
    row.fill(words := known.copy())
    assert set(ids_in(words)) == allowed
    row.take(ids_in(words)[0])
    assert row.first_mask is None
    assert row.failure is None
    assert np.array_equal(first, known)
    with pytest.raises(ValueError, match="read-only"):
        first[:] = 0
