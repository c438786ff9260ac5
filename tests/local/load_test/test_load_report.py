"""The report of a load: misses of every kind count, a lucky rate does not, and the search finds the edge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_local.client import Answer, AnswerEnd
from baton_local.errors import StartError
from baton_local.load_test.latency_spread import latency
from baton_local.load_test.load_record import LoadRecord, as_json, read_load_record
from baton_local.load_test.load_report import ClientTargets, LoadReport, highest_kept, report
from baton_local.load_test.load_table import as_text
from baton_local.load_test.rate_search import WIDTH, next_rate

TARGETS = ClientTargets(0.5, 0.02)


def answer(ttft_s: float, tpot_s: float = 0.01, tokens: int = 11, late_s: float = 0.0) -> Answer:
    first = 100.0 + ttft_s
    return Answer(
        due_s=100.0,
        sent_s=100.0 + late_s,
        times_s=[first + tpot_s * at for at in range(tokens)],
        tokens=tokens,
        prompt_tokens=40,
        ended_s=first + tpot_s * (tokens - 1),
        end=AnswerEnd.WHOLE,
    )


def refused() -> Answer:
    return Answer(100.0, 100.0, ended_s=100.05, end=AnswerEnd.REFUSED, failure="HTTP 429", detail="full")


def at_rate(rate: float, share_met: float, count: int = 100) -> LoadReport:
    met = round(share_met * count)
    answers = [answer(0.1) for _ in range(met)] + [answer(0.9) for _ in range(count - met)]
    return report(answers, count / rate, [TARGETS], 0.95, rate=rate)


def test_latencies_throughput_and_goodput_of_a_known_load() -> None:
    load = report([answer(0.1), answer(0.3), answer(0.6), refused()], 2.0, [TARGETS], 0.5, gpus=2)
    assert (load.rate, load.offered, load.whole, load.refused, load.broken) == (2.0, 4, 3, 1, 0)
    assert load.ttft_s is not None
    assert load.ttft_s.p50 == pytest.approx(0.3)
    assert load.ttft_s.p99 == pytest.approx(0.6)
    assert load.tpot_s is not None
    assert load.tpot_s.p95 == pytest.approx(0.01)
    assert load.itl_s is not None
    assert load.itl_s.p50 == pytest.approx(0.01)
    assert load.output_tokens_per_s == pytest.approx(33 / 0.7)
    assert load.per_gpu_tokens_per_s == pytest.approx(33 / 1.4)
    assert (load.prompt_tokens, load.output_tokens) == (40, 11)
    (attainment,) = load.attainment
    assert (attainment.share, attainment.goodput_per_s, attainment.is_kept) == (0.5, 1.0, True)
    assert load.failures == {"HTTP 429": 1}
    assert load.failed_because == "full"


def test_an_end_without_text_is_no_token_and_no_gap() -> None:
    """Most servers tell the end of a choice in an event of its own, at once after the last token."""
    ended = answer(0.1, tpot_s=0.01, tokens=11)
    ended.times_s.append(ended.times_s[-1] + 1e-5)
    ended.bare_ends = 1
    load = report([ended], 1.0, [TARGETS], 0.95)
    assert load.itl_s is not None
    assert load.itl_s.mean == pytest.approx(0.01)


def test_a_share_is_kept_where_it_is_met_to_the_request() -> None:
    """99.9 / 100 is a little more than 999 / 1,000."""
    answers = [answer(0.1) for _ in range(999)]
    assert report([*answers, answer(0.9)], 1.0, [TARGETS], 99.9 / 100).attainment[0].is_kept
    assert not report([*answers[1:], answer(0.9), answer(0.9)], 1.0, [TARGETS], 99.9 / 100).attainment[0].is_kept


def test_tokens_that_the_server_did_not_count_are_said_to_be_pieces() -> None:
    uncounted, counted = answer(0.1), answer(0.1)
    counted.is_counted = True
    load = report([uncounted, counted, refused()], 3.0, [], 0.95)
    assert load.uncounted == 1
    assert "uncounted at 1 req/s: the server reported the tokens of 1 of 2 answers" in as_text([record([load])])


def test_a_load_that_was_stopped_keeps_no_target() -> None:
    """The answers that had ended are the fast ones."""
    load = report([answer(0.1)], 2.0, [TARGETS], 0.95, rate=5.0, unended=7)
    assert (load.attainment, load.unended) == ((), 7)
    assert "stopped at 5 req/s after 2 s: 7 requests in flight are missing" in as_text([record([load])])
    assert highest_kept([load], TARGETS) is None


def test_what_a_refusal_said_is_one_line() -> None:
    torn = Answer(100.0, 100.0, end=AnswerEnd.REFUSED, failure="HTTP 500", detail="<html>\r\n  oh\nno")
    assert report([torn], 1.0, [], 0.95).failed_because == "<html> oh no"


def test_a_refusal_is_a_miss_at_every_target_and_hides_no_latency() -> None:
    load = report([answer(0.1), refused()], 1.0, [ClientTargets()], 0.95)
    assert load.attainment[0].share == 0.5
    assert load.ttft_s is not None
    assert load.ttft_s.p99 == pytest.approx(0.1)


def test_what_nobody_can_know_is_none_and_not_zero() -> None:
    load = report([refused()], 1.0, [TARGETS], 0.95, gpus=8)
    assert (load.ttft_s, load.tpot_s, load.itl_s, load.e2e_s) == (None,) * 4
    assert (load.output_tokens, load.prompt_tokens, load.per_gpu_tokens_per_s) == (None,) * 3
    assert "-" in as_text([record([load])])


def test_one_token_has_no_time_between_tokens_and_meets_that_target() -> None:
    load = report([answer(0.1, tokens=1)], 1.0, [TARGETS], 0.95)
    assert load.tpot_s is None
    assert load.attainment[0].is_kept


def test_time_counts_from_when_a_request_was_due() -> None:
    load = report([answer(0.4, late_s=0.3)], 1.0, [TARGETS], 0.95)
    assert load.ttft_s is not None
    assert load.ttft_s.p50 == pytest.approx(0.4)
    assert load.late_p99_s == pytest.approx(0.3)
    assert "late" in as_text([record([load])])


def test_a_rate_above_one_that_failed_is_no_goodput() -> None:
    reports = [at_rate(1.0, 1.0), at_rate(3.0, 0.97), at_rate(2.0, 0.9)]
    best = highest_kept(reports, TARGETS)
    assert best is not None
    assert best.rate == 1.0
    assert highest_kept(reports[1:], TARGETS) is None


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=50))
def test_percentiles_are_values_that_came(values: list[float]) -> None:
    spread = latency(values)
    assert spread is not None
    assert {spread.p50, spread.p95, spread.p99} <= set(values)
    assert spread.p50 <= spread.p95 <= spread.p99 <= max(values)


@given(st.floats(0.5, 30.0))
def test_the_search_ends_within_its_width_below_the_edge(edge: float) -> None:
    known: dict[float, bool] = {}
    while (rate := next_rate(known, 0.5, 32.0)) is not None:
        assert rate not in known
        known[rate] = rate <= edge
        assert len(known) < 20
    best = max((rate for rate, is_kept in known.items() if is_kept), default=None)
    assert best is not None
    assert best <= edge <= best / (1 - WIDTH) + 0.001


def test_the_search_ends_where_nothing_or_everything_is_kept() -> None:
    assert next_rate({1.0: False}, 1.0, 8.0) is None
    assert next_rate({1.0: True, 8.0: True}, 1.0, 8.0) is None


def record(reports: list[LoadReport]) -> LoadRecord:
    return LoadRecord("one", "tiny", "poisson", (1,), 0.95, None, tuple(reports))


def test_a_record_is_read_as_it_was_written_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    written = record([at_rate(2.0, 0.97), report([refused()], 1.0, [ClientTargets(tpot_s=0.1)], 0.95)])
    path.write_bytes(as_json(written))
    assert read_load_record(path) == written
    text = as_text([read_load_record(path), record([at_rate(4.0, 0.2)])])
    assert "goodput at TTFT 500 ms, TPOT 20 ms, 95 %: one 2 req/s" in text
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(StartError, match="format 99"):
        read_load_record(path)
    path.write_text("{}")
    with pytest.raises(StartError, match="was not written by"):
        read_load_record(path)
