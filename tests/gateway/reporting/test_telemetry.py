"""A gateway's telemetry: every arrival counted, lengths paired, bounded, and nothing lost between two summaries."""

from __future__ import annotations

from random import Random

import pytest

from baton_gateway.reporting.telemetry import LoadTelemetry
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.measures import MAX_SHAPES, Backlog, SketchData
from baton_wire.messages.operator_link import Summary, ToOperator
from baton_wire.rules.answer_lengths import UNKNOWN_TOKENS
from baton_wire.sketch import merged

NOTHING = Backlog(0, 0, 0.0, 0)


def summarise(telemetry: LoadTelemetry, now: float) -> Summary:
    return telemetry.summary(now, 1e9 + now, NOTHING, (), "applied")


def quantile(sketch: SketchData, share: float) -> float:
    value = merged([sketch]).quantile(share)
    assert value is not None
    return value


def test_accepted_queued_and_refused_requests_all_arrive() -> None:
    telemetry = LoadTelemetry(100.0)
    for waits in (False, False, True):
        telemetry.offered(waits)
    telemetry.refused()
    telemetry.branched(3)
    first = summarise(telemetry, 105.0)
    arrived = first.arrived
    assert (arrived.accepted, arrived.queued, arrived.refused, first.served.unserved) == (5, 1, 1, 1)
    assert (first.number, first.seconds) == (1, 5.0)
    second = summarise(telemetry, 130.0)
    assert (second.number, second.seconds, second.arrived.accepted, second.served.unserved) == (2, 25.0, 0, 0)


def test_prompts_are_paired_with_answers_that_ended_and_never_longer_than_asked_for() -> None:
    telemetry = LoadTelemetry(0.0, Random(1))
    telemetry.prompt(1000, 256, max_tokens=50, choices=1)
    telemetry.prompt(1000, 256, max_tokens=900, choices=1)
    assert [shape.output_tokens for shape in summarise(telemetry, 1).arrived.sample] == [50, UNKNOWN_TOKENS]
    telemetry.output(1.0, 1000, 300)
    telemetry.look(1.5, ())
    telemetry.prompt(1000, 256, max_tokens=50, choices=1)
    telemetry.prompt(1000, 256, max_tokens=900, choices=1)
    assert [shape.output_tokens for shape in summarise(telemetry, 2).arrived.sample] == [50, 300]


def test_further_choices_are_sequences_whose_prompt_is_there_already() -> None:
    telemetry = LoadTelemetry()
    telemetry.prompt(640, 64, max_tokens=10, choices=3)
    assert [shape.cached_tokens for shape in summarise(telemetry, 1).arrived.sample] == [64, 640, 640]


def test_a_flood_is_sampled_evenly_within_the_bound() -> None:
    telemetry = LoadTelemetry(0.0, Random(3))
    for tokens in range(1, 10_001):
        telemetry.prompt(tokens, 0, max_tokens=10, choices=1)
    summary = summarise(telemetry, 1)
    prompts = [shape.prompt_tokens for shape in summary.arrived.sample]
    assert len(prompts) == MAX_SHAPES
    assert 3_500 < sum(prompts) / len(prompts) < 6_500
    assert quantile(summary.arrived.prompt_tokens, 0.95) == pytest.approx(9_500, rel=0.02)
    assert len(encode(summary)) < 16_000
    assert decode(encode(summary), ToOperator) == summary


def test_latencies_of_a_window_are_told_once() -> None:
    telemetry = LoadTelemetry()
    for milliseconds in range(1, 101):
        telemetry.ttft.add(milliseconds / 1000)
        telemetry.tpot.add(milliseconds / 10_000)
    served = summarise(telemetry, 1).served
    assert quantile(served.ttft, 0.95) == pytest.approx(0.095, rel=0.02)
    assert quantile(served.tpot, 0.5) == pytest.approx(0.005, rel=0.02)
    assert summarise(telemetry, 2).served.ttft.bins == ()


def test_the_backlog_in_tokens_is_unknown_before_any_prompt_was_seen() -> None:
    telemetry = LoadTelemetry()
    assert telemetry.backlog(3, 3, 1.0, 3).tokens is None
    assert telemetry.backlog(0, 0, 0.0, 0).tokens == 0
    telemetry.prompt(500, 0, 10, 1)
    assert telemetry.backlog(3, 3, 1.0, 3).tokens == 1500


def test_the_backlog_counts_what_has_to_be_computed() -> None:
    """A session of 64k tokens that is at home for all but 6k once looked like ten requests."""
    telemetry = LoadTelemetry()
    telemetry.prompt(64_000, 58_000, 10, 1)
    assert telemetry.backlog(3, 3, 1.0, 3).tokens == 18_000
