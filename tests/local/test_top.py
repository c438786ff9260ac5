"""`baton top`: the page of a moment, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from baton_gateway.page.page_document import limited_by as gateway_answer
from baton_gateway.records.parts import Part, meaning_of
from baton_gateway.records.request_record import RecordSpan, RequestRecord
from baton_gateway.requests.held_runs import PREFILL_BUSY
from baton_local.commands.top import as_json, as_text, limited_by, page
from baton_local.fleet import observation
from baton_local.fleet.observation import (
    GatewayState,
    Link,
    LostTime,
    Observation,
    ObservedCacheUse,
    ObservedTenant,
    ObservedWorker,
    Transfer,
    lost_time,
)
from baton_testing.processes.run_record import DECODE, GATEWAY, PREFILL, RUN_RECORD
from baton_wire.sketch import Sketch

RECORD = msgspec.structs.replace(
    RUN_RECORD,
    reasons={"prefill": "prefill 1: no request seen yet", "decode": "decode 1: it is at its maximum of 1"},
    wanted={"prefill": 1, "decode": 2},
)
LINK = Link("127.0.0.1:8003", "tcp", 3e8)
SENT = ObservedWorker(64, 60, 1000, 0, 2, Transfer("tcp", 2, 4500, 0, (LINK,)))
RECEIVED = ObservedWorker(64, 32, 1000, 5, 1, Transfer("tcp", 2, 0, 4500))
TENANTS = (ObservedTenant("batch", 6, 3), ObservedTenant("", 2, 0))


def sketch(*milliseconds: float) -> Sketch:
    whole = Sketch()
    for value in milliseconds:
        whole.add(value / 1e3)
    return whole


SEEN = Observation(
    RECORD,
    ((PREFILL, SENT), (DECODE, RECEIVED)),
    GATEWAY,
    GatewayState(
        {"127.0.0.1:8001": "live"},
        ttft_minute=sketch(100, 200, 300, 900),
        tpot_minute=sketch(10, 12),
        cache=ObservedCacheUse(1000, 630, 900, {}),
        running=8,
        waiting=0,
        tenants=TENANTS,
    ),
)


def seen_with(**changes: object) -> Observation:
    return replace(SEEN, seen_by_gateway=replace(SEEN.seen_by_gateway, **changes))  # type: ignore[arg-type]


def test_the_page_answers_what_limits_why_this_size_and_who_fills_it() -> None:
    text = as_text(SEEN)
    assert "limited by: prefill: TTFT p95 " in text
    assert "decode 1: it is at its maximum of 1" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip() and line[0] != " "}
    assert rows["decode"] == ["decode", "1", "of", "1", "2", "1", "to", "3", "5", "1", "50.0", "%"]
    assert rows["TTFT"][-3:] == ["75.0", "%", "4"]
    assert rows["TPOT"][-3:] == ["100.0", "%", "2"]
    assert rows["batch"] == ["batch", "75.0", "%", "6", "3"]
    assert rows["(no"][:3] == ["(no", "key)", "25.0"]
    assert rows["chat-prefill-a-0"][3] == "live"
    assert "gateway: 8 running, 0 waiting; cached: 63.0 % of prompt tokens" in text
    assert "chat-prefill-a-0 → chat-decode-b-0" in text


def test_programs_get_the_same_figures() -> None:
    data = json.loads(page(SEEN, "json", is_live=False))
    assert data["slo"]["ttft"] | {"reached_ms": None} == {
        "target_ms": 500.0, "percentile": 95, "reached_ms": None, "within": 0.75, "count": 4,
    }  # fmt: skip
    assert data["queue"] == {"gateway": 0, "workers": 3}
    assert data["pools"]["decode"] == {
        "workers": 1, "ready": 1, "wanted": 2, "min": 1, "max": 3, "ranks": 1, "running": 5, "waiting": 1,
        "kv_used": 0.5,
        "reason": "decode 1: it is at its maximum of 1",
    }  # fmt: skip
    assert data["tenants"][0] == {"name": "batch", "running": 6, "waiting": 3, "share": 0.75}
    assert data["links"] == [{"worker": "chat-prefill-a-0", **msgspec.structs.asdict(LINK)}]
    assert data["cached_share"] == 0.63
    assert "\n" not in page(SEEN, "json", is_live=True), "one object a line"


def test_each_missed_target_names_its_pool() -> None:
    assert limited_by(seen_with(ttft_minute=sketch(100), tpot_minute=sketch(10))) is None
    slow = limited_by(seen_with(ttft_minute=sketch(100), tpot_minute=sketch(40)))
    assert slow is not None
    assert slow.startswith("decode (1 of 2 workers ready): TPOT p95 ")
    assert slow.endswith("target 25.0 ms")
    queued = limited_by(seen_with(waiting=7, tpot_minute=Sketch()))
    assert queued is not None
    assert queued.startswith("the gateway's queue (7 waiting): TTFT")
    assert limited_by(seen_with(ttft_minute=Sketch(), tpot_minute=Sketch())) is None


def test_requests_that_were_refused_or_failed_miss_the_first_token() -> None:
    seen = seen_with(ttft_minute=sketch(*[100] * 80), tpot_minute=sketch(10), unserved_minute=20, waiting=3)
    limit = limited_by(seen)
    assert limit is not None
    assert limit.startswith("prefill: TTFT p95 ")
    assert limit.endswith("20 of 100 requests were refused or failed")
    rows = {line.split()[0]: line.split() for line in as_text(seen).splitlines() if line.strip()}
    assert rows["TTFT"][-3:] == ["80.0", "%", "100"]
    assert rows["TPOT"][-3:] == ["100.0", "%", "1"], "a refused request has no gap between tokens"
    data = as_json(seen)
    assert (data["unserved"], data["slo"]["ttft"]["within"]) == (20, 0.8)  # type: ignore[index]


def test_a_few_refused_requests_leave_the_target_met() -> None:
    assert limited_by(seen_with(ttft_minute=sketch(*[100] * 98), tpot_minute=Sketch(), unserved_minute=2)) is None


def test_a_deployment_that_refuses_every_request_is_limited_by_prefill() -> None:
    limit = limited_by(seen_with(ttft_minute=Sketch(), tpot_minute=Sketch(), unserved_minute=7))
    assert limit == "prefill: TTFT p95 unknown, target 500.0 ms; 7 of 7 requests were refused or failed"


def test_what_is_not_known_is_null_and_no_zero() -> None:
    silent = Observation(RECORD, ((PREFILL, None), (DECODE, None)), GATEWAY, GatewayState())
    data = as_json(silent)
    assert data["queue"] == {"gateway": None, "workers": None}
    assert (data["running"], data["cached_share"], data["limited_by"], data["tenants"]) == (None, None, None, [])
    slo, pools = data["slo"], data["pools"]
    assert isinstance(slo, dict)
    assert isinstance(pools, dict)
    assert (slo["ttft"]["within"], slo["ttft"]["reached_ms"], pools["decode"]["kv_used"]) == (None, None, None)
    text = as_text(silent)
    assert "gateway: an unknown number running, an unknown number waiting; cached: not known yet" in text
    assert "silent" in text
    assert "limited by: not known: the gateway does not answer" in text


def test_a_pool_that_sizing_finds_large_enough_is_not_blamed_for_its_size() -> None:
    why = "decode 1: TPOT p95 40 ms misses the target: by its step times 1 keeps it: look for another cause"
    record = msgspec.structs.replace(RECORD, wanted={"decode": 1}, reasons={"decode": why})
    slow = limited_by(replace(seen_with(ttft_minute=Sketch(), tpot_minute=sketch(40)), record=record))
    assert slow is not None
    assert slow.startswith("decode (its size would do: are the machines busy with something else?): TPOT p95 ")


def test_without_a_decode_pool_neither_it_nor_its_target_is_shown() -> None:
    record = msgspec.structs.replace(
        RECORD, limits={"prefill": (1, 1)}, wanted={"prefill": 1}, reasons={"prefill": "prefill 1"}
    )
    seen = Observation(record, ((PREFILL, SENT),), GATEWAY, SEEN.seen_by_gateway)
    assert not {"decode", "TPOT"} & set(as_text(seen).split())
    assert "decode" not in as_json(seen)["pools"]  # type: ignore[operator]


def test_the_page_says_where_late_requests_lost_their_time_and_whose_they_are() -> None:
    meaning = "waiting for admission: the tenant's quota, or requests before it"
    lost = LostTime("gateway", 0.896, meaning, 72, "its tenant's own quota", "blue", 3, "rate_limited")
    lines = as_text(seen_with(lost_time=lost)).splitlines()
    assert lines[2] == f"late requests lost 89.6 % of their time at the gateway: {meaning} (its tenant's own quota)"
    assert lines[3] == (
        "  72 in the last 5 minutes; most are of tenant blue; 3 got an error, most of them rate_limited; "
        "see baton explain --missed"
    )
    assert as_json(seen_with(lost_time=lost))["lost_time"] == msgspec.structs.asdict(lost)
    assert as_json(SEEN)["lost_time"] is None


@pytest.mark.parametrize(
    ("place", "share", "named"),
    [
        ("gateway", 0.8, "the gateway"),
        ("gateway", 0.4, "prefill"),
        ("prefill", 0.9, "prefill"),
        ("new", 0.9, "prefill"),
    ],
)
def test_a_pool_is_not_blamed_for_time_that_is_lost_elsewhere(place: str, share: float, named: str) -> None:
    lost = LostTime(place, share, "tokenising the prompt", 3)
    limit = limited_by(seen_with(tpot_minute=Sketch(), lost_time=lost))
    assert limit is not None
    assert limit.startswith(f"{named}: TTFT p95 ")


def test_only_the_command_that_shows_lost_time_asks_the_gateway_for_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: `baton status`, and each poll of a deployment that was starting, had the gateway make its whole page."""
    asked: list[str] = []

    def answer(_: str, path: str) -> dict[str, object] | None:
        asked.append(path)
        lost = {"place": "links", "share": 1.0, "meaning": "x", "requests": 1}
        return {"limited_by": lost} if path == "/ui/data.json" else {"workers": [], "latency": {}}

    monkeypatch.setattr(observation, "get_json", answer)
    record = msgspec.structs.replace(RUN_RECORD, processes=(replace(GATEWAY, admin_port=9001),))
    seen = observation.observe(record)
    assert (asked, seen.seen_by_gateway.lost_time) == (["/state"], None)
    assert observation.with_lost_time(seen).seen_by_gateway.lost_time == LostTime("links", 1.0, "x", 1)
    silent = replace(seen, seen_by_gateway=GatewayState())
    assert observation.with_lost_time(silent) == silent
    assert asked == ["/state", "/ui/data.json"], "a gateway without a state is not waited for twice"


@pytest.mark.parametrize("data", [None, {}, [], {"limited_by": None}, {"limited_by": {"place": 3}}])
def test_a_page_without_an_answer_says_nothing_of_lost_time(data: object) -> None:
    assert lost_time(data) is None


def test_lost_time_is_read_as_the_gateway_writes_it() -> None:
    span = RecordSpan(Part.HELD.value, 0, 100, PREFILL_BUSY)
    record = RequestRecord(
        *("r", "blue", "m", "finished", "", 1e9 - 5, 100, [span], [], 1, 1),
        *(None, None, None, None, None, True, [], 0, 0.1),
    )
    written = gateway_answer([record], 1e9)
    found = lost_time(json.loads(json.dumps({"limited_by": written, "more": 1})))
    assert found == LostTime("prefill", 1.0, meaning_of(Part.HELD), 1, PREFILL_BUSY, "blue")
