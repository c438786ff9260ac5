"""A deployment's history stays within its bounds, whatever is added."""

from __future__ import annotations

import pytest

from baton_wire.deployment_history import (
    MAX_CHANGES,
    MAX_HISTORY_BYTES,
    MAX_TEXT_CHARS,
    ChangeKind,
    DeploymentHistory,
    decode_history,
    encode_history,
    make_change,
)


def test_older_changes_make_room() -> None:
    history = DeploymentHistory()
    for number in range(3 * MAX_CHANGES):
        history = history.with_changes([make_change(number, ChangeKind.DECISION, "decode", f"change {number}")])
    assert len(history.entries) == MAX_CHANGES
    assert history.entries[-1].text == f"change {3 * MAX_CHANGES - 1}"
    assert decode_history(encode_history(history)) == history


def test_changes_leave_what_is_said_of_the_present() -> None:
    history = DeploymentHistory().with_reasons({"decode": "at max"}, {"decode": 3})
    later = history.with_changes([make_change(1.0, ChangeKind.DECISION, "decode", "2 to 3")])
    assert (later.reasons, later.wanted) == (history.reasons, {"decode": 3})


@pytest.mark.parametrize("char", ["x", '"', "\\", "\x00", "\n", "é", "𝄞"])
def test_the_document_fits_whatever_its_texts_have(char: str) -> None:
    change = make_change(1e10, ChangeKind.RESTART, char * 9_999, char * 9_999)
    reasons = {f"{number}{char}": char * 9_999 for number in range(9)}
    history = DeploymentHistory().with_reasons(reasons).with_changes([change] * MAX_CHANGES)
    assert len(history.entries) > 20
    content = encode_history(history)
    assert len(content) <= MAX_HISTORY_BYTES
    assert decode_history(content) == history
    assert len(change.text) == MAX_TEXT_CHARS


def test_a_document_beyond_its_bounds_is_refused() -> None:
    for content in (b"[]", b'{"entries": [{"at": -1}]}', b'{"entries": [' + b" " * MAX_HISTORY_BYTES + b"]}"):
        with pytest.raises(ValueError):
            decode_history(content)
