"""The order of a batch: longest answers first, and as many beside them as fill every step alike."""

from __future__ import annotations

from typing import Any

import pytest

from baton_gateway.batches.lines import BatchLine
from baton_local.batch.order import LEAST_ROWS, WINDOW, WINDOW_BYTES, Balance, TokenDemand, demand_of, windows


def line(name: str, url: str = "/v1/completions", **body: Any) -> BatchLine:
    return BatchLine(name, url, body)


@pytest.mark.parametrize(
    ("url", "body", "expected"),
    [
        ("/v1/completions", {}, TokenDemand(16, 1)),
        ("/v1/completions", {"max_tokens": 40, "n": 3, "prompt": ["a", "b"]}, TokenDemand(40, 6)),
        ("/v1/completions", {"max_tokens": 40, "max_completion_tokens": 9, "prompt": [1, 2]}, TokenDemand(40, 1)),
        ("/v1/completions", {"max_tokens": 5_000, "prompt": [[1, 2], [3]]}, TokenDemand(512, 2)),
        ("/v1/chat/completions", {}, TokenDemand(512, 1)),
        ("/v1/chat/completions", {"max_tokens": 40, "max_completion_tokens": 9}, TokenDemand(9, 1)),
        ("/v1/chat/completions", {"max_tokens": "many", "n": True}, TokenDemand(512, 1)),
    ],
)
def test_a_line_says_how_much_it_may_draw(url: str, body: dict[str, Any], expected: TokenDemand) -> None:
    assert demand_of(line("a", url, **body), 512) == expected


def test_the_longest_of_a_window_come_first_and_equals_keep_their_order() -> None:
    lines = [line(f"{number}", max_tokens=number // 2 % 5 + 1) for number in range(WINDOW + 3)]
    first, second = windows(lines, 512)
    assert (len(first), len(second)) == (WINDOW, 3)
    assert [demand.tokens for demand, _ in first] == sorted((demand.tokens for demand, _ in first), reverse=True)
    for tokens in range(1, 6):
        numbers = [int(entry.custom_id or "") for demand, entry in first if demand.tokens == tokens]
        assert numbers == sorted(numbers)
    assert {entry.custom_id for _, entry in first + second} == {line.custom_id for line in lines}


def test_a_window_of_long_lines_has_fewer_of_them() -> None:
    lines = [BatchLine(f"{number}", "/v1/completions", {}, WINDOW_BYTES // 4) for number in range(10)]
    assert [len(window) for window in windows(lines, 512)] == [4, 4, 2]


def test_rows_are_what_ends_with_the_longest() -> None:
    balance = Balance(512)
    balance.coming(20_000)
    assert balance.rows() == 512, "nothing is known of lengths yet"
    balance.taken(100)
    balance.began("long", 100)
    assert balance.rows() == 200
    balance.drew("long", 50)
    assert balance.rows() == 399
    balance.drew("long", 40)
    assert balance.rows() == 512, "never more than there are slots"
    balance.taken(19_000)
    assert balance.rows() == LEAST_ROWS
    balance.ended("long")
    assert balance.rows() == 512


def test_few_slots_are_all_used() -> None:
    balance = Balance(16)
    balance.coming(64)
    balance.taken(64)
    balance.began("only", 64)
    assert balance.rows() == 16
