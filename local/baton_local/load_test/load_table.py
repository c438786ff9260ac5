"""Load reports as a text table: one line per rate, then the goodput at each pair of targets."""

from __future__ import annotations

from collections.abc import Sequence

from baton_local.load_test.latency_spread import LatencySpread
from baton_local.load_test.load_record import LoadRecord
from baton_local.load_test.load_report import ClientTargets, LoadReport, highest_kept
from baton_local.load_test.session_report import SessionFigures
from baton_local.text_table import table

LATE_S = 0.02
"""Delay of sending, at the 99th percentile, above which the client itself distorts the measurement."""
HEADER = (
    *("server", "req/s", "sent", "lost", "TTFT ms p50/p95/p99", "TPOT ms p50/p95/p99"),
    *("ITL ms p99", "E2E s p95", "output tok/s", "per GPU"),
)


def as_text(records: Sequence[LoadRecord]) -> str:
    """All records in one table, with notes on the last one below it."""
    last = records[-1]
    targets = list(dict.fromkeys(result.targets for report in last.reports for result in report.attainment))
    rows = [
        (*_cells(record.name, report), *(_within(report, pair) for pair in targets))
        for record in records
        for report in record.reports
    ]
    lines = [f"{last.model}: {last.load}, seeds {last.seeds[0]} to {last.seeds[-1]}"]
    lines.append(table((*HEADER, *(f"% {pair}" for pair in targets)), rows))
    for pair in targets:
        for record in records:
            if all(report.share_within(pair) is None for report in record.reports):
                continue
            best = highest_kept(record.reports, pair)
            goodput = "below every tried rate" if best is None else f"{best.rate:.3g} req/s"
            lines.append(f"goodput at {pair}, {100 * record.share:g} %: {record.name} {goodput}")
    lines += [f"late: at {one.rate:.3g} req/s the client itself sent {1e3 * one.late_p99_s:.0f} ms late (p99)"
              for one in last.reports if one.late_p99_s is not None and one.late_p99_s > LATE_S]  # fmt: skip
    lines += [f"uncounted at {one.rate:.3g} req/s: the server reported the tokens of {one.whole - one.uncounted} of"
              f" {one.whole} answers; for the others, pieces are counted"
              for one in last.reports if one.uncounted]  # fmt: skip
    lines += [f"stopped at {one.rate:.3g} req/s after {one.duration_s:.3g} s: {one.unended} requests in flight are"
              " missing, the slow ones among them"
              for one in last.reports if one.unended is not None]  # fmt: skip
    lines += [line for one in last.reports if one.sessions is not None for line in _session_lines(one.sessions)]
    for one in last.reports:
        counts = ", ".join(f"{count} x {failure}" for failure, count in one.failures.items())
        lines += [f"lost at {one.rate:.3g} req/s: {counts}; the first: {one.failed_because}"] if counts else []
    return "\n".join(lines)


def _cells(name: str, one: LoadReport) -> tuple[object, ...]:
    return (
        name,
        f"{one.rate:.3g}",
        one.offered,
        one.refused + one.broken,
        _milliseconds(one.ttft_s),
        _milliseconds(one.tpot_s),
        None if one.itl_s is None else f"{1e3 * one.itl_s.p99:.3g}",
        None if one.e2e_s is None else f"{one.e2e_s.p95:.3g}",
        None if one.output_tokens_per_s is None else round(one.output_tokens_per_s),
        None if one.per_gpu_tokens_per_s is None else round(one.per_gpu_tokens_per_s),
    )


def _session_lines(figures: SessionFigures) -> list[str]:
    lines = [
        f"sessions: {figures.sessions} with {figures.turns} turns, {figures.planned_prompt_tokens:,} prompt tokens"
    ]
    ideal = f"{figures.ideal_cached_tokens:,} that an infinite cache would have found"
    if figures.cached_of_ideal is None or figures.cached_tokens is None:
        lines.append(f"cached tokens: not reported by the server; {ideal}")
    else:
        share = f"{100 * figures.cached_of_ideal:.1f} %"
        lines.append(f"cached tokens: {figures.cached_tokens:,} of {ideal}: {share} of the ideal")
    if figures.cached_of_ideal is not None and figures.unreported:
        lines.append(f"unreported: {figures.unreported} answers came without a count of cached tokens")
    if figures.interactivity_p50 is not None and figures.interactivity_p90 is not None:
        speeds = f"P90 {figures.interactivity_p90:.3g}/s, P50 {figures.interactivity_p50:.3g}/s"
        lines.append(f"output tokens over E2E latency: {speeds}")
    for name, spread in (("first", figures.first_turns_ttft_s), ("later", figures.later_turns_ttft_s)):
        lines += [] if spread is None else [f"TTFT of {name} turns: {_milliseconds(spread)} ms p50/p95/p99"]
    return lines


def _milliseconds(spread: LatencySpread | None) -> str | None:
    return None if spread is None else "/".join(f"{1e3 * value:.3g}" for value in (spread.p50, spread.p95, spread.p99))


def _within(one: LoadReport, targets: ClientTargets) -> str | None:
    share = one.share_within(targets)
    return None if share is None else f"{100 * share:.1f}"
