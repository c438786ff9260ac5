"""A thought's marks and budget, followed by ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_engine.grammars.thought_tracker import ThoughtStage, ThoughtTracker
from baton_wire.messages.values import Thought

OPENING, INSIDE, OVER = ThoughtStage.OPENING, ThoughtStage.INSIDE, ThoughtStage.OVER


def stages(thought: Thought, ids: Sequence[int]) -> list[ThoughtStage]:
    tracker = ThoughtTracker(thought)
    seen = [tracker.stage]
    for token in ids:
        tracker.take(token)
        seen.append(tracker.stage)
    return seen


@pytest.mark.parametrize(
    ("thought", "ids", "expected"),
    [
        (Thought(end=(9,)), [1, 2, 9, 9], [INSIDE, INSIDE, INSIDE, OVER, OVER]),
        (Thought(end=(9,), start=(7,)), [7, 1, 9, 7], [OPENING, INSIDE, INSIDE, OVER, OVER]),
        (Thought(end=(9,), start=(7,)), [1, 7, 9], [OPENING, OVER, OVER, OVER]),
        (Thought(end=(9,), start=(7, 8)), [7, 8, 9], [OPENING, OPENING, INSIDE, OVER]),
        (Thought(end=(9,), start=(7, 8)), [7, 7, 8], [OPENING, OPENING, OVER, OVER]),
        (Thought(end=(1, 1, 2)), [1, 1, 1, 2], [INSIDE, INSIDE, INSIDE, INSIDE, OVER]),
        (Thought(end=(1, 2, 1, 3)), [1, 2, 1, 2, 1, 3], [INSIDE] * 6 + [OVER]),
    ],
)
def test_marks_open_and_close_a_thought(thought: Thought, ids: Sequence[int], expected: list[ThoughtStage]) -> None:
    assert stages(thought, ids) == expected


@given(
    mark=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    ids=st.lists(st.integers(0, 2), max_size=40),
)
def test_a_thought_is_over_when_its_last_ids_are_the_mark(mark: list[int], ids: list[int]) -> None:
    ends = (at for at in range(len(ids) + 1) if ids[:at][-len(mark) :] == mark)
    first = next(ends, None)
    seen = stages(Thought(end=tuple(mark)), ids)
    assert seen == [OVER if first is not None and at >= first else INSIDE for at in range(len(ids) + 1)]


@given(
    mark=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    wishes=st.lists(st.integers(0, 2), min_size=60, max_size=60),
    budget=st.integers(0, 30),
)
def test_behind_the_budget_the_mark_is_forced(mark: list[int], wishes: list[int], budget: int) -> None:
    """Whatever a model wishes: budget and mark bound the thought, and until then nothing is forced."""
    tracker, ids = ThoughtTracker(Thought(end=tuple(mark), max_tokens=budget)), list[int]()
    for wish in wishes:
        if tracker.stage is OVER:
            break
        assert (tracker.forced is not None) == (len(ids) >= budget)
        ids.append(wish if tracker.forced is None else tracker.forced)
        tracker.take(ids[-1])
    assert tracker.stage is OVER
    assert ids[-len(mark) :] == mark
    assert len(ids) <= budget + len(mark)
