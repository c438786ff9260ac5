"""Loads as a table for people: a line a rate, then the goodput at each pair of targets."""

from __future__ import annotations

from collections.abc import Sequence

from baton_local.load_test.load_record import LoadRecord
from baton_local.load_test.load_report import ClientTargets, LatencySpread, LoadReport, highest_kept
from baton_local.text_table import table

LATE_S = 0.02
"""Of sending, at the 99th percentile: above it the client is part of what is measured."""
HEADER = (
    *("server", "req/s", "sent", "lost", "TTFT ms p50/p95/p99", "TPOT ms p50/p95/p99"),
    *("ITL ms p99", "E2E s p95", "output tok/s", "per GPU"),
)


def as_text(records: Sequence[LoadRecord]) -> str:
    """All records in one table; what is told below it is of the last one's targets."""
    last = records[-1]
    targets = list(dict.fromkeys(each.targets for one in last.reports for each in one.attainment))
    rows = [
        (*_cells(record.name, one), *(_within(one, each) for each in targets))
        for record in records
        for one in record.reports
    ]
    lines = [f"{last.model}: {last.load}, seeds {last.seeds[0]} to {last.seeds[-1]}"]
    lines.append(table((*HEADER, *(f"% {each}" for each in targets)), rows))
    for each in targets:
        for record in records:
            if all(one.share_within(each) is None for one in record.reports):
                continue
            best = highest_kept(record.reports, each)
            goodput = "below every rate that was tried" if best is None else f"{best.rate:.3g} req/s"
            lines.append(f"goodput at {each}, {100 * record.share:g} %: {record.name} {goodput}")
    lines += [f"late: at {one.rate:.3g} req/s the client itself sent {1e3 * one.late_p99_s:.0f} ms late (p99)"
              for one in last.reports if one.late_p99_s is not None and one.late_p99_s > LATE_S]  # fmt: skip
    lines += [f"uncounted at {one.rate:.3g} req/s: the server told the tokens of {one.whole - one.uncounted} of"
              f" {one.whole} answers; of the others pieces are counted"
              for one in last.reports if one.uncounted]  # fmt: skip
    lines += [f"stopped at {one.rate:.3g} req/s after {one.duration_s:.3g} s: {one.unended} requests under way are not"
              " in it, the slow ones among them"
              for one in last.reports if one.unended is not None]  # fmt: skip
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


def _milliseconds(found: LatencySpread | None) -> str | None:
    return None if found is None else "/".join(f"{1e3 * value:.3g}" for value in (found.p50, found.p95, found.p99))


def _within(one: LoadReport, targets: ClientTargets) -> str | None:
    share = one.share_within(targets)
    return None if share is None else f"{100 * share:.1f}"
