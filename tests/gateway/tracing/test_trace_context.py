"""The trace of a request: its client's where that is well formed, else a new one that is sampled by its id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.tracing.trace_context import TraceContext, choose_trace, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # the flag for random ids
        (f"00-{TRACE}-{SPAN}-02", False),
        (f" 00-{TRACE}-{SPAN}-01\t", True),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
    ],
)
def test_a_well_formed_header_is_honoured(header: str, is_sampled: bool) -> None:
    assert parse_traceparent([header]) == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["00"],
        [f"00-{TRACE}-{SPAN}"],
        [f"00-{TRACE}-{SPAN}-1"],
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"00-{TRACE}-{SPAN}-01-"],
        [f"cc-{TRACE}-{SPAN}-01x"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE[:-1]}g-{SPAN}-01"],
        [f"00-{TRACE[:-1]}٣-{SPAN}-01"],
        [f"00_{TRACE}_{SPAN}_01"],
        [f"00-{TRACE}-{SPAN}-01"] * 2,
    ],
)
def test_a_malformed_header_is_ignored(values: list[str]) -> None:
    assert parse_traceparent(values) is None
    assert choose_trace(values, 1.0, bytes(range(16))) == TraceContext(bytes(range(16)).hex(), "", True)


@given(st.lists(st.text(), max_size=2))
def test_no_header_fails(values: list[str]) -> None:
    parse_traceparent(values)


@given(st.binary(min_size=16, max_size=16))
def test_the_ratio_decides_about_new_traces_alone(random_id: bytes) -> None:
    assert choose_trace([], 1.0, random_id).is_sampled
    assert not choose_trace([], 0.0, random_id).is_sampled
    assert choose_trace([f"00-{TRACE}-{SPAN}-01"], 0.0, random_id).is_sampled
    assert not choose_trace([f"00-{TRACE}-{SPAN}-00"], 1.0, random_id).is_sampled


def test_a_quarter_of_evenly_spread_ids_is_sampled() -> None:
    ids = [(place << 56).to_bytes(16) for place in range(256)]
    assert sum(choose_trace([], 0.25, random_id).is_sampled for random_id in ids) == 64
