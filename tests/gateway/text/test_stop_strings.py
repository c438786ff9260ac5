"""Stop strings, wherever the tokens were cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.text.choice_text import StopMatcher

TEXTS = st.text(alphabet="abc\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=3).map(tuple)


def _cut(text: str, borders: list[int]) -> list[str]:
    places = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[start:end] for start, end in pairwise(places)]


def _run(parts: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    text = ""
    for part in parts:
        text += matcher.push(part)
        if matcher.matched is not None:
            return text, matcher.matched
    return text + matcher.flush(), None


def _expected(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Character by character: the first moment at which the text ends with a stop string; the longest of those."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_the_result_does_not_depend_on_where_the_text_is_cut(
    text: str, stops: tuple[str, ...], borders: list[int]
) -> None:
    assert _run(_cut(text, borders), stops) == _expected(text, stops)


@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_no_more_is_held_back_than_a_stop_string_can_begin_with(
    text: str, stops: tuple[str, ...], borders: list[int]
) -> None:
    matcher = StopMatcher(stops)
    pushed = delivered = ""
    for part in _cut(text, borders):
        pushed += part
        delivered += matcher.push(part)
        if matcher.matched is not None:
            return
        held = pushed[len(delivered) :]
        assert pushed == delivered + held
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_stop_strings_nothing_is_held_back() -> None:
    matcher = StopMatcher(())
    assert matcher.push("abc") == "abc"
    assert matcher.flush() == ""
