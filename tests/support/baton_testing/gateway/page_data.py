"""Data of a made installation under load, for tests of the page in a browser and for its pictures."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from baton_gateway.page.page_document import PageInputs, page_document
from baton_gateway.page.page_part import PagePart, PageWorker, TenantStanding
from baton_gateway.page.viewer import Viewer
from baton_gateway.records.request_record import RecordedAttempt, RecordSpan, RequestRecord
from baton_gateway.reporting.load_series import MAX_SLOTS, LoadSlot
from baton_wire.sketch import Sketch

AT_S = 1_764_374_400.0
TENANTS = ("search", "support", "batch-reports", "lab")
MODEL = "llama-3.1-8b"
EVERYTHING = Viewer(sees_all=True, may_generate=True)
REASONS = {
    "prefill": "prefill 3: forecast 18,400 prompt tokens/s at +46 s",
    "decode": "decode 4: forecast 5,200 answer tokens/s at +46 s",
}
LIMITS = {"requestsPerMinute": 600, "inputTokensPerMinute": 400_000, "maxConcurrent": 64}


def made_document(viewer: Viewer = EVERYTHING) -> dict[str, Any]:
    """Return the page's data: the decode pool was too small some minutes ago, and one link is slow."""
    random = Random(55)
    records = [_record(number, random) for number in range(20)]
    slowest = sorted(records, key=lambda record: -record.duration_ns)
    inputs = PageInputs(viewer, AT_S, MAX_SLOTS * 10.0, [_part(random)], [], slowest, [r for r in records if r.missed])
    document: dict[str, Any] = msgspec.to_builtins(page_document(inputs))
    return document


def with_every_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every text in it changed, but for the names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_every_text(item, change) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "fields" else with_every_text(item, change) for key, item in value.items()}
    return value


def _part(random: Random) -> PagePart:
    ttft, tpot = Sketch(), Sketch()
    for _ in range(300):
        ttft.add(random.lognormvariate(-1.3, 0.5))
        tpot.add(random.lognormvariate(-3.7, 0.25))
    tenants = {
        "search": TenantStanding(41, 12, {"requestsPerMinute": 590.0, "inputTokensPerMinute": 212_000.0}, LIMITS),
        "support": TenantStanding(17, 0, {"requestsPerMinute": 120.0, "inputTokensPerMinute": 60_000.0}, LIMITS),
        "batch-reports": TenantStanding(9, 30),
        "lab": TenantStanding(1, 0),
    }
    workers = tuple(_worker(number, random) for number in range(6))
    slots = tuple(_slot(number, random) for number in range(1, MAX_SLOTS + 1))
    history = msgspec.json.encode({"entries": _entries(), "reasons": REASONS})
    latencies = ttft.data(), tpot.data(), 0.5, 0.03
    return PagePart(4021, 68, 42, tenants, (MODEL,), workers, slots, *latencies, history=history)


def _entries() -> list[dict[str, Any]]:
    entries = [
        (3000, "version", "baton", "0.1.0 to 0.2.0"),
        (2900, "spec", "decode.replicas.max", "3 to 6"),
        (1500, "limit", "decode", "wants 5 workers, replicas.max is 3"),
        (1400, "decision", "decode", "3 to 4: TPOT p95 41 ms misses 30 ms, forecast 5,200 answer tokens/s at +46 s"),
        (900, "restart", "llama-prefill-1", "killed by SIGKILL, not by Baton; started again"),
        (420, "decision", "prefill", "2 to 3: forecast 18,400 prompt tokens/s at +46 s"),
    ]
    return [{"at": AT_S - ago, "kind": kind, "subject": subject, "text": text} for ago, kind, subject, text in entries]


def _slot(number: int, random: Random) -> LoadSlot:
    is_short = 200 < number < 228
    first, ended = 30 + random.randrange(8), 28 + random.randrange(8)
    late = random.randrange(10) if is_short else random.randrange(2)
    return LoadSlot(
        number,
        0.5,
        0.03,
        first,
        first - random.randrange(2) - late // 3,
        ended,
        ended - late,
        finished=ended,
        prompt_tokens=first * 4_100,
        completion_tokens=ended * (220 if is_short else 260),
        running=60 + random.randrange(12),
        waiting=random.randrange(25) + (60 if is_short else 0),
    )


def _worker(number: int, random: Random) -> PageWorker:
    role = "prefill" if number < 2 else "decode"
    has_lanes = role == "prefill"
    return PageWorker(
        f"{random.randrange(1 << 32):08x}",
        role,
        f"10.1.0.{number + 11}:8090",
        MODEL,
        "suspect" if number == 5 else "live",
        8_192,
        running=random.randrange(4, 20),
        waiting=random.randrange(3),
        waiting_tokens=random.randrange(9_000),
        blocks_free=random.randrange(400, 5_000),
        blocks_cached=300,
        step_s=0.021,
        tokens_per_s=8_900.0 if role == "prefill" else 620.0,
        kv_bytes=random.randrange(1 << 38),
        lane="tcp" if has_lanes else None,
        lane_bytes_per_s=(0.9e9 if number else 4.1e9) if has_lanes else None,
        lanes_too_slow=number if has_lanes else None,
    )


def _record(number: int, random: Random) -> RequestRecord:
    is_slow = number % 3 == 0
    parts = [
        ("queued", 2_000_000, ""),
        ("rendering", 900_000, ""),
        ("tokenising", 3_100_000, ""),
        ("routing", 200_000, ""),
        ("links", 700_000, ""),
        ("prefill_queue", random.randrange(90_000_000), "a1"),
        ("prefill", 130_000_000 + random.randrange(90_000_000), "a1"),
        ("reservation", 900_000, "b2"),
        ("transfer", random.randrange(60_000_000), "b2"),
        ("decode_queue", 12_000_000, "b2"),
        ("decoding", 1_400_000_000 + random.randrange(900_000_000), "b2"),
        *([("slow_gaps", 900_000_000 + random.randrange(1_900_000_000), "b2")] if is_slow else []),
    ]
    spans, at = [], 0
    for part, duration, worker in parts:
        spans.append(RecordSpan(part, at, duration, "", worker))
        at += duration
    return RequestRecord(
        id=f"req-{random.randrange(1 << 48):012x}",
        tenant=TENANTS[number % len(TENANTS)],
        model=MODEL,
        outcome="finished",
        code="",
        started_at=AT_S - 3 * number,
        duration_ns=at,
        spans=spans,
        attempts=[RecordedAttempt(1, "disaggregated", "a1", "b2", 7_000_000)],
        prompt_tokens=4_096,
        completion_tokens=256,
        cached_tokens=1_024,
        ttft_s=0.28,
        tpot_s=0.041 if is_slow else 0.022,
        ttft_target_s=0.5,
        tpot_target_s=0.03,
        missed=is_slow,
        slow_gaps=[],
        num_slow_gaps=0,
        gap_target_s=0.03,
        workers={"a1": "10.1.0.11:8090", "b2": "10.1.0.13:8090"},
    )
