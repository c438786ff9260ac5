"""Requests belong to the link that opened them, and end with their last choice."""

from __future__ import annotations

from baton_wire.messages.values import RequestKey
from baton_worker.serving.open_requests import OpenRequests

KEY = RequestKey(b"k" * 16, 1)
OTHER = RequestKey(b"o" * 16, 1)


def test_a_key_cannot_be_opened_twice() -> None:
    requests: OpenRequests[str] = OpenRequests()
    assert requests.open(KEY, (0,), "first")
    assert not requests.open(KEY, (0,), "second")
    assert requests.link_of(KEY) == "first"
    assert not requests.owns(KEY, "second")


def test_a_request_ends_with_its_last_choice() -> None:
    requests: OpenRequests[str] = OpenRequests()
    requests.open(KEY, (0, 2), "link")
    assert not requests.choice_ended(KEY, 2)
    assert not requests.choice_ended(KEY, 2)
    assert requests.choice_ended(KEY, 0)
    assert requests.link_of(KEY) is None
    assert not requests.choice_ended(KEY, 0)


def test_a_lost_link_finds_its_requests_in_order() -> None:
    requests: OpenRequests[str] = OpenRequests()
    requests.open(KEY, (0,), "a")
    requests.open(OTHER, (0,), "a")
    requests.open(RequestKey(b"x" * 16, 1), (0,), "b")
    assert requests.keys_of("a") == [KEY, OTHER]
    assert requests.close(KEY) == "a"
    assert requests.close(KEY) is None
    assert len(requests) == 2
