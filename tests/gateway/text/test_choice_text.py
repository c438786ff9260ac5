"""Increments of one choice: stop strings, stop ids and logprobs together."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.text.choice_text import ChoiceText, Increment
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_testing.gateway.made_tokenizers import MadeTokenizer, bundle_hash, byte_level
from baton_wire.messages.values import Finish, TokenLogprob

LOGPROB = TokenLogprob(-1.0, ())


@cache
def tokenizer() -> MadeTokenizer:
    return byte_level()


@cache
def model() -> TextModel:
    data = tokenizer().bundle()
    return load_text_model(data, bundle_hash(data))


def ids_of(text: str) -> list[int]:
    return list(tokenizer().tokenizer.encode(text, add_special_tokens=False).ids)


def run(ids: list[int], stops: tuple[str, ...], finish: Finish, step: int = 1) -> list[Increment]:
    """Push `step` ids at a time until it finishes."""
    text = model().choice_text(stops, skip_special=True, continues=False)
    increments: list[Increment] = []
    for start in range(0, len(ids), step):
        part = tuple(ids[start : start + step])
        last = start + step >= len(ids)
        increments.append(text.push(part, (LOGPROB,) * len(part), finish if last else None))
        if increments[-1].finish is not None:
            break
    return increments


def joined(increments: list[Increment]) -> str:
    return "".join(increment.text for increment in increments)


def test_a_stop_string_cuts_the_text_and_says_after_how_many_tokens() -> None:
    ids = ids_of("one END two")
    increments = run(ids, ("END",), Finish.LENGTH)
    assert joined(increments) == "one "
    assert increments[-1].finish is Finish.STOP
    stopped_after = increments[-1].stopped_after
    assert stopped_after is not None
    assert model().decode(ids[:stopped_after]).startswith("one END")
    assert not model().decode(ids[: stopped_after - 1]).startswith("one END")


def test_a_drawn_stop_id_is_not_rendered() -> None:
    increments = run([*ids_of("fox"), tokenizer().eos_id], (), Finish.STOP)
    assert joined(increments) == "fox"
    assert len([info for increment in increments for info in increment.tokens]) == len(ids_of("fox"))


def test_a_stop_id_that_is_ordinary_text_is_not_rendered_either() -> None:
    ids = ids_of("fox jumps")
    assert joined(run(ids, (), Finish.STOP)) == model().decode(ids[:-1])


def test_what_was_held_back_comes_with_the_end() -> None:
    increments = run(ids_of("one EN"), ("END",), Finish.LENGTH)
    assert joined(increments) == "one EN"
    assert increments[-1].finish is Finish.LENGTH


@given(
    st.text(alphabet="abE ND é東", max_size=20),
    st.sampled_from([(), ("END",), ("a", "bb"), ("é",)]),
    st.sampled_from([1, 2, 5]),
)
def test_logprob_entries_follow_their_tokens(text: str, stops: tuple[str, ...], step: int) -> None:
    ids = ids_of(text)
    increments = run(ids, stops, Finish.LENGTH, step) if ids else []
    infos = [info for increment in increments for info in increment.tokens]
    delivered = joined(increments)
    assert [info.token for info in infos] == ids[: len(infos)], "in order, without a gap"
    if increments and increments[-1].stopped_after is None:
        assert len(infos) == len(ids)
    offsets = [info.text_offset for info in infos]
    assert offsets == sorted(offsets)
    assert all(offset <= len(delivered) for offset in offsets)
    spelled = b"".join(model().token_bytes(info.token) for info in infos).decode(errors="replace")
    assert spelled.startswith(delivered), "the entries cover the delivered text"


def test_the_parts_of_an_entry_never_come_before_its_text() -> None:
    text = ChoiceText(model().choice_text((), True, False)._detokenizer, ("fox jumps",))
    first = text.push(tuple(ids_of("fox")), (LOGPROB,) * len(ids_of("fox")), None)
    assert (first.text, first.tokens) == ("", ())
