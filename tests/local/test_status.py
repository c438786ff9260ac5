"""The output of `baton status` and of the demo for an observation."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from msgspec.structs import replace

from baton_local.client import Answer, AnswerEnd
from baton_local.commands.demo import report
from baton_local.commands.status import as_json, as_text
from baton_local.fleet import observation as fleet_observation
from baton_local.fleet.observation import GatewayState, Link, Observation, ObservedCacheUse, ObservedWorker, Transfer
from baton_local.fleet.own_deployment import OwnDeploymentError, check_moved, is_paired, is_settled
from baton_testing.processes.run_record import DECODE, GATEWAY, PREFILL, RUN_RECORD
from baton_wire.sketch import Sketch

FAST = Sketch()
for _milliseconds in range(1, 101):
    FAST.add(_milliseconds / 1e3)
SLOW = Sketch()
for _ in range(20):
    SLOW.add(0.8)
SENT = ObservedWorker(64, 60, 1000, 0, 0, Transfer("tcp", 2, 4500, 0))
RECEIVED = ObservedWorker(64, 64, 1000, 1, 0, Transfer("tcp", 2, 0, 4500))


def observation(prefill: ObservedWorker | None = SENT, decode: ObservedWorker | None = RECEIVED) -> Observation:
    seen = GatewayState({"127.0.0.1:8001": "live"}, ttft=FAST, ttft_minute=SLOW)
    return Observation(RUN_RECORD, ((PREFILL, prefill), (DECODE, decode)), GATEWAY, seen)


def test_json_has_the_promised_fields() -> None:
    status = json.loads(json.dumps(as_json(observation())))
    assert status["endpoint"] == "http://127.0.0.1:8000"
    assert status["pools"] == {
        "prefill": {"workers": 1, "ready": 1, "ranks": 2},
        "decode": {"workers": 1, "ready": 1, "ranks": 1},
    }
    prefill, decode = status["workers"]
    assert {key: prefill[key] for key in ("role", "pid", "address", "revision", "blocks_total", "blocks_free")} == {
        "role": "prefill",
        "pid": 11,
        "address": "127.0.0.1:8001",
        "revision": "f-a",
        "blocks_total": 64,
        "blocks_free": 60,
    }
    assert decode["transfer"]["bytes_received"] == 4500
    assert (prefill["link"], decode["link"]) == ("live", None)
    ttft = status["slo"]["ttft"]
    assert (ttft["count"], ttft["target_ms"], ttft["percentile"], ttft["met"]) == (100, 500.0, 95, True)
    for percent in (50, 95, 99):
        assert ttft[f"p{percent}_ms"] == pytest.approx(percent, rel=0.02)


def test_what_is_unknown_is_null_and_not_zero() -> None:
    status = json.loads(json.dumps(as_json(observation(prefill=None))))
    assert status["workers"][0]["blocks_free"] is None
    assert status["workers"][0]["transfer"]["bytes_sent"] is None
    assert (status["slo"]["tpot"]["p95_ms"], status["slo"]["tpot"]["met"]) == (None, None)


def test_text_shows_every_process_and_latency() -> None:
    text = as_text(observation())
    assert "chat-prefill-a-0  prefill  ready  live  11   127.0.0.1:8001" in text
    assert "TPOT  no requests yet; target p95 25.0 ms" in text


def test_the_end_of_a_former_process_is_shown_with_its_cause() -> None:
    """Found: after a restart only the terminal of `baton up` showed why Baton had killed a worker."""
    cause = "killed by Baton: it did not answer for 30 s"
    ended = dataclasses.replace(PREFILL, starts=2, last_end=cause, last_end_s=time.monotonic() - 200.0)
    seen = dataclasses.replace(observation(), workers=((ended, SENT), (DECODE, RECEIVED)))
    assert f"chat-prefill-a-0: the one before 3 min ago: {cause}" in as_text(seen).splitlines()
    first, second = json.loads(json.dumps(as_json(seen)))["workers"]
    assert (first["last_end"], second["last_end"], second["last_end_s_ago"]) == (cause, None, None)
    assert first["last_end_s_ago"] == pytest.approx(200.0, abs=60.0)


def test_each_pool_has_a_line_with_its_limits_and_its_reason() -> None:
    lines = as_text(observation()).splitlines()
    assert "pools (SLO)" in lines
    assert "  1 to 1 × 2 ranks   prefill 1: no request seen yet" in lines
    assert "  1 to 3             decode 1: forecast 9 answer tokens/s at +40 s" in lines
    assert json.loads(json.dumps(as_json(observation())))["limits"] == {"prefill": [1, 1], "decode": [1, 3]}


def test_percentiles_of_the_last_minute_stand_above_those_since_the_start() -> None:
    lines = [line for line in as_text(observation()).splitlines() if "observations" in line]
    assert lines[0].startswith("TTFT  last minute  p50 79")
    assert lines[0].endswith("(20 observations); target p95 500.0 ms: MISSED")
    assert lines[1].startswith("      since start  p50 ")
    assert lines[1].endswith("(100 observations)")
    ttft = json.loads(json.dumps(as_json(observation())))["slo"]["ttft"]
    assert (ttft["met"], ttft["last_minute"]["met"], ttft["last_minute"]["count"]) == (True, False, 20)


def test_a_quiet_minute_is_said_to_have_no_requests() -> None:
    seen = Observation(RUN_RECORD, (), GATEWAY, GatewayState({}, ttft=FAST))
    assert "TTFT  last minute  no requests; target p95 500.0 ms\n      since start  p50" in as_text(seen)


def test_a_worker_that_does_not_answer_is_silent_and_not_ready() -> None:
    silent = dataclasses.replace(DECODE, silent_since_s=time.monotonic() - 12.2)
    record = replace(RUN_RECORD, processes=(GATEWAY, PREFILL, silent))
    seen = Observation(record, ((PREFILL, SENT), (silent, None)), GATEWAY, GatewayState())
    assert "chat-decode-b-0   decode   silent 12 s" in as_text(seen)
    status = json.loads(json.dumps(as_json(seen)))
    assert status["workers"][1]["phase"] == "silent"
    assert status["workers"][1]["silent_s"] == pytest.approx(12.2, abs=5.0)
    assert status["pools"]["decode"] == {"workers": 1, "ready": 0, "ranks": 1}
    assert "chat-decode-b-0   decode   silent " in as_text(observation(decode=None)), "before the first missed check"


@pytest.mark.parametrize("page", [{}, {"error": "busy"}, {"workers": [{}], "latency": {}}], ids=str)
def test_a_gateway_whose_page_is_of_another_version_is_unknown_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, page: dict[str, object]
) -> None:
    monkeypatch.setattr(fleet_observation, "get_json", lambda base, path: page)
    record = replace(RUN_RECORD, processes=(dataclasses.replace(GATEWAY, admin_port=9001),))
    seen = fleet_observation.observe(record)
    assert seen.seen_by_gateway == GatewayState()
    assert GATEWAY.name in as_text(seen)


def test_lanes_name_both_workers_and_say_what_they_reach_now() -> None:
    links = (
        Link("127.0.0.1:8003", "ucx cma/memory", 4.1e9, False, 3.9e9),
        Link("d:2", "tcp x1", 9e8, True),
        Link("d:3", "x", None, None),
        Link("d:4", "tcp x1", 9e8, None, 4e6),
        Link("d:5", "tcp x1", 2e8),
    )
    seen = observation(prefill=replace(SENT, transfer=replace(SENT.transfer, links=links)))
    assert [line for line in as_text(seen).splitlines() if line.startswith("KV ")] == [
        "KV    chat-prefill-a-0 → chat-decode-b-0  ucx cma/memory  "
        "3.90 GB/s in the last minute, 4.10 GB/s when it came up",
        "KV    chat-prefill-a-0 → d:2  tcp x1  0.90 GB/s when it came up  below minBandwidth",
        "KV    chat-prefill-a-0 → d:3  x  not measured",
        "KV    chat-prefill-a-0 → d:4  tcp x1  4.00 MB/s in the last minute, 0.90 GB/s when it came up  "
        "slow: 0 % of the fastest",
        "KV    chat-prefill-a-0 → d:5  tcp x1  0.20 GB/s when it came up",
    ]
    prefill = json.loads(json.dumps(as_json(seen)))["workers"][0]
    assert prefill["transfer"]["links"][2]["bytes_per_s"] is None


def test_the_demo_shows_blocks_and_bytes_by_direction() -> None:
    answer = Answer(1.0, 1.0, [1.0412, 1.0412 + 95 * 0.0031], tokens=96, end=AnswerEnd.WHOLE)
    lines = report(observation(), answer).splitlines()
    assert lines[2].split() == ["prefill", "11", "127.0.0.1:8001", "4", "4,500", "sent"]
    assert lines[3].split() == ["decode", "12", "127.0.0.1:8002", "4", "4,500", "received"]
    assert lines[-1] == "transport tcp   TTFT 41.2 ms   TPOT 3.1 ms   96 tokens"


STILL = replace(SENT, transfer=Transfer("tcp", 0, 0, 0))


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        (STILL, STILL, "no KV moved"),
        (SENT, STILL, "no KV moved"),
        (STILL, RECEIVED, "no KV moved"),
        (None, RECEIVED, "no KV moved"),
        (replace(SENT, transfer=Transfer("tcp", 2, 10, 0)), RECEIVED, "4500 bytes of KV were received"),
    ],
)
def test_the_demo_fails_when_kv_did_not_move(
    prefill: ObservedWorker | None, decode: ObservedWorker | None, message: str
) -> None:
    with pytest.raises(OwnDeploymentError, match=message):
        check_moved(observation(prefill, decode))


def test_the_demo_fails_when_one_process_did_everything() -> None:
    both = replace(SENT, transfer=Transfer("tcp", 2, 4500, 4500))
    with pytest.raises(OwnDeploymentError, match="did not leave its process"):
        check_moved(observation(both, STILL))


def test_the_demo_accepts_kv_that_moved() -> None:
    check_moved(observation())


@pytest.mark.parametrize(
    ("sent", "received", "running", "settled"),
    [(4500, 4500, 0, True), (0, 4500, 0, False), (4400, 4500, 0, False), (0, 0, 0, False), (4500, 4500, 1, False)],
    ids=["both counted", "sender behind", "sender partly behind", "nothing moved", "still working"],
)
def test_a_demo_is_settled_when_both_ends_counted_the_same(
    sent: int, received: int, running: int, settled: bool
) -> None:
    prefill = ObservedWorker(64, 60, 1000, 0, 0, Transfer("tcp", 2, sent, 0))
    decode = ObservedWorker(64, 64, 1000, running, 0, Transfer("tcp", 2, 0, received))
    assert is_settled([prefill, decode]) is settled
    assert not is_settled([prefill, decode, None])


def test_a_demo_waits_for_a_pair_and_not_for_a_decode_worker_alone() -> None:
    seen = observation(SENT, RECEIVED)
    addresses = [str(process.address) for process, _ in seen.workers]
    linked = replace(SENT, transfer=replace(SENT.transfer, links=(Link("d", "tcp"),)))
    live = GatewayState(dict.fromkeys(addresses, "live"))
    assert not is_paired(Observation(RUN_RECORD, seen.workers, GATEWAY, live)), "no way from the prefill worker"
    workers = ((PREFILL, linked), (DECODE, RECEIVED))
    assert is_paired(Observation(RUN_RECORD, workers, GATEWAY, live))
    one = GatewayState(dict.fromkeys(addresses[1:], "live"))
    assert not is_paired(Observation(RUN_RECORD, workers, GATEWAY, one)), "the gateway knows one worker"


def test_the_status_shows_how_much_of_what_was_cached_was_found_and_why_sessions_moved() -> None:
    use = ObservedCacheUse(1_000, 810, 900, {"busy": 3, "full": 0, "failed": 0, "leaving": 1})
    seen = replace_gateway(GatewayState(cache=use))
    assert (
        "CACHE 81 % of prompt tokens found, 90 % of those that any worker had; sessions moved: busy 3, leaving 1"
        in (as_text(seen).splitlines())
    )
    assert as_json(seen)["cache"] == {
        "prompt_tokens": 1_000,
        "cached_tokens": 810,
        "cacheable_tokens": 900,
        "moved_sessions": {"busy": 3, "full": 0, "failed": 0, "leaving": 1},
    }
    for nothing in (None, ObservedCacheUse(0, 0, 0, {})):
        assert "CACHE" not in as_text(replace_gateway(GatewayState(cache=nothing)))
    assert as_json(replace_gateway(GatewayState()))["cache"] is None


def replace_gateway(state: GatewayState) -> Observation:
    return dataclasses.replace(observation(), seen_by_gateway=state)


def test_without_a_decode_pool_neither_it_nor_its_target_is_shown() -> None:
    seen = observation()
    record = replace(RUN_RECORD, limits={"prefill": (1, 1)}, wanted={"prefill": 1}, reasons={"prefill": "prefill 1"})
    seen = dataclasses.replace(seen, record=record, workers=seen.workers[:1])
    text = as_text(seen)
    assert "decode" not in text
    assert "TPOT" not in text
    assert "  1 to 1 × 2 ranks   prefill 1" in text.splitlines()
    assert as_json(seen)["pools"] == {"prefill": {"workers": 1, "ready": 1, "ranks": 2}}
