"""Panels of the Grafana dashboards: the question that a panel answers, its unit and its queries. Those on several
dashboards are here.

In a query `@` stands for the matchers of the dashboard's namespace and deployment, and `[~]` for a range that suits the
scrape interval.
"""

from __future__ import annotations

from dataclasses import dataclass

RATIO, SECONDS, COUNT, PER_SECOND, REQUESTS, BYTES, TOKENS = "percentunit", "s", "short", "ops", "reqps", "Bps", "tok/s"
MONEY = "short"
QUANTILES = (("median", 0.5), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: `title` is a question, `queries` are pairs of a legend and an expression."""

    title: str
    unit: str
    description: str
    queries: tuple[tuple[str, str], ...]
    is_stat: bool = False
    """True: one figure in place of a graph."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard. `choices` are its further variables, see `VARIABLES` in dashboards.py."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    choices: tuple[str, ...] = ()


def quantiles(metric: str, by: str = "", matchers: str = "@") -> tuple[tuple[str, str], ...]:
    """Queries of the quantiles of a histogram, in all or by one label."""
    labels = f"le, {by}" if by else "le"
    suffix = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (name + suffix, f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{matchers}}}[~])))")
        for name, share in QUANTILES
    )


def total(metric: str, by: str = "", matchers: str = "@") -> str:
    """The rate of a counter, in all or by labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{matchers}}}[~]))"


def attainment(metric: str, target: str) -> str:
    """The share of observations within a target that is a bound of the histogram."""
    within = f'@,le="${target}"'
    return f"{total(f'{metric}_bucket', matchers=within)} / {total(f'{metric}_count')}"


TTFT_MET = Panel(
    "Is TTFT within its target?",
    RATIO,
    "Share of requests whose first token came within $ttft_target s. Choose the target of spec.slo.ttft: it is a bound "
    "of the buckets, so the share is exact. Below the percentile of the spec the target is missed: see the pools.",
    (("TTFT", attainment("baton_gateway_ttft_seconds", "ttft_target")),),
    is_stat=True,
)
TPOT_MET = Panel(
    "Is TPOT within its target?",
    RATIO,
    "Share of answers whose mean gap between tokens was within $tpot_target s. Choose the target of spec.slo.tpot. "
    "A missed TPOT means full decode workers: see the pools.",
    (("TPOT", attainment("baton_gateway_tpot_seconds", "tpot_target")),),
    is_stat=True,
)
PROMPT, CACHED, DELIVERED = (total(f"baton_gateway_{kind}_tokens_total") for kind in ("prompt", "cached", "completion"))
WORKERS = Panel(
    "Do the pools have the workers that they should have?",
    COUNT,
    "Wanted: the decision. Running: started and not stopping. Routable: gateways send requests there; no line while "
    "it is unknown. Running below wanted: Pods are missing. Routable below running: they start, or links are cut.",
    (("{{role}} {{state}}", "sum by (role, state) (baton_pool_workers{@})"),),
)
DEMAND = Panel(
    "How much is asked of us?",
    TOKENS,
    "Tokens of prompts that were computed, tokens of prompts that were cached, and tokens delivered. Prompts load the "
    "prefill pool, delivered tokens the decode pool.",
    (
        ("prompt, computed", f"{PROMPT} - {CACHED}"),
        ("prompt, cached", CACHED),
        ("delivered", DELIVERED),
    ),
)
WAITING = Panel(
    "Do requests run or wait?",
    COUNT,
    "Requests at the gateways. Waiting ones are held for a worker or a tenant's quota: see the tenants and the pools.",
    (
        ("running", "sum (baton_gateway_requests_running{@})"),
        ("waiting", "sum (baton_gateway_requests_waiting{@})"),
    ),
)
FOUND = Panel(
    "Are cached prefixes found?",
    RATIO,
    "Of the tokens that some worker had cached, the share that was found where the prompt went; and of all tokens of "
    "prompts the share that was cached. The first falls when sessions move.",
    (
        ("found of cached", f"{CACHED} / {total('baton_gateway_cacheable_tokens_total')}"),
        ("cached of all", f"{CACHED} / {PROMPT}"),
    ),
)
