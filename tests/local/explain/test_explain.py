"""`baton explain`: the story of a record, its trace file, and what is missing."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from baton_gateway.records.record_builder import build_record
from baton_gateway.records.record_query import ProcessRecords, RecordQuery, RecordsPage, parse_query
from baton_gateway.records.request_record import RecordSpan
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_gateway.requests.record_keeping import refused_trail
from baton_local.__main__ import main
from baton_local.commands import explain
from baton_local.commands.explain import with_names
from baton_local.errors import LocalError
from baton_local.explain import record_sources
from baton_local.explain.perfetto import trace_events
from baton_local.explain.record_sources import FoundRecords, query_path
from baton_local.explain.story import list_records, tell_story
from baton_local.fleet.run_dir import base_directory, claimed, write_json
from baton_testing.processes.run_record import GATEWAY, RUN_RECORD
from baton_wire.messages.values import LegTimes

RUN, P, D = b"r" * 16, b"p" * 16, b"d" * 16


def trail() -> Trail:
    """A prompt of one second after one lost attempt, and a slow gap."""
    trail = Trail(10.0, 0.1)
    trail.mark(10.01, Moment.OFFERED)
    trail.mark(10.02, Moment.ADMITTED)
    trail.mark(10.03, Moment.PREPARED)
    trail.routed(10.03, RUN, 1, P, D, "disaggregated")
    trail.failed(10.2, RUN, 1, D, "peer_lost")
    trail.routed(10.2, RUN, 2, P, D, "disaggregated")
    trail.arrived(11.3, RUN, P, LegTimes(1.08, began_s=0.05, computed_s=1.07, chunks=4))
    trail.arrived(11.35, RUN, D, LegTimes(1.14, reserved_s=0.01, landed_s=1.1))
    trail.slow(0.3, 11.8, 0)
    trail.mark(12.0, Moment.ENDED, text="finished")
    trail.mark(12.01, Moment.CLOSED)
    return trail


RECORD = build_record(
    keep(trail(), TrailFacts("id-1", "team", "m", "finished", "", 1e9, 5_000, 20, 64, 1.29, 0.05, 0.5))
)


def test_the_largest_part_comes_first_and_the_blamed_worker_is_named() -> None:
    story = tell_story(RECORD)
    title, verdict, latencies, *rest = story.splitlines()
    assert title.startswith("id-1: finished after 2.01 s, 5000 + 20 tokens, 64 cached; team, ")
    assert verdict == "Most of it, 1.02 s (51 %): computing the prompt (4 chunks, worker 70707070)"
    assert latencies == "TTFT 1.29 s, missed its target of 500.0 ms; TPOT 50.0 ms"
    assert any("peer_lost, blamed on 64646464" in line for line in rest)
    assert any(line.startswith("1 gaps between tokens beyond 100.0 ms") for line in rest)
    [_, row] = list_records([RECORD]).splitlines()
    assert row.startswith("id-1  ")
    assert "  5000 + 20  " in row
    assert row.endswith("prefill 1.02 s (4 chunks)")


def test_a_client_that_read_too_slowly_is_named_before_the_largest_part() -> None:
    """Found: the story blamed decoding, and nothing showed that the gateway had closed the connection."""
    facts = TrailFacts("id-1", "team", "m", "cancelled", "slow_client", 1e9, 5_000, 20)
    title, verdict, largest, *_ = tell_story(build_record(keep(trail(), facts))).splitlines()
    assert title.startswith("id-1: cancelled (slow_client) after 2.01 s")
    assert verdict.startswith("The gateway closed the connection: the client read too slowly")
    assert largest.startswith("Most of it, ")


def test_a_request_that_was_refused_on_arrival_is_explained_by_its_code() -> None:
    title, verdict, *_ = tell_story(
        build_record(refused_trail("id-1", "team", "tokens_exceeded", 10.0, 10.002))
    ).splitlines()
    assert title.startswith("id-1: refused (tokens_exceeded) after 2.0 ms")
    assert verdict.startswith("Refused before it began, with tokens_exceeded: ")


def test_an_id_is_looked_for_in_all_deployments_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: with two deployments the command asked for --name, which the id's finder does not know."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = base_directory()
    monkeypatch.setattr(
        explain, "ask_gateways", lambda url, *_: FoundRecords([RECORD] if url.endswith(":9002") else [], 1, 0, ())
    )
    with claimed(base, "default.first") as first, claimed(base, "default.second") as second:
        for run, port in ((first, 9001), (second, 9002)):
            record = msgspec.structs.replace(RUN_RECORD, processes=(dataclasses.replace(GATEWAY, admin_port=port),))
            write_json(run.record, msgspec.to_builtins(record))
        assert main(["explain", "id-1"]) == 0
        assert capsys.readouterr().out.startswith("id-1: finished after 2.01 s")
        assert main(["explain", "--slowest", "3"]) != 0
        assert "choose one with --name" in capsys.readouterr().err
        assert main(["status"]) == 0
        assert capsys.readouterr().out.count("PROCESS") == 2, "each of them is shown"


def test_a_deployment_that_cannot_be_asked_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: one gateway without an answer, or one `baton up` that was starting, ended the command for all of them; and
    where no gateway ran, no message reported it.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = base_directory()

    def ask(url: str, *_: object) -> FoundRecords:
        if not url.endswith(":9002"):
            raise LocalError("no gateway answered")
        return FoundRecords([RECORD], 1, 0, ())

    monkeypatch.setattr(explain, "ask_gateways", ask)
    with (
        claimed(base, "default.silent") as silent,
        claimed(base, "default.sound") as sound,
        claimed(base, "default.starting"),
        claimed(base, "default.without") as without,
    ):
        for run, port in ((silent, 9001), (sound, 9002), (without, None)):
            record = msgspec.structs.replace(RUN_RECORD, processes=(dataclasses.replace(GATEWAY, admin_port=port),))
            write_json(run.record, msgspec.to_builtins(record))
        assert main(["explain", "id-1"]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("id-1: finished after 2.01 s")
        for name in ("silent", "starting", "without"):
            assert re.search(rf"default\.{name} \(.*\) did not answer: its records are missing", err)
        assert main(["status"]) == 0
        out = capsys.readouterr().out
        assert out.count("PROCESS") == 3
        assert "default.starting is not up yet" in out


def test_spans_tile_the_record() -> None:
    ends = [span.start_ns + span.duration_ns for span in RECORD.spans]
    assert [span.start_ns for span in RECORD.spans] == [0, *ends[:-1]]
    assert ends[-1] == RECORD.duration_ns == 2_010_000_000
    assert [span.part for span in RECORD.spans] == [
        *("receiving", "queued", "preparing", "lost_attempt"),
        *("links", "prefill_queue", "prefill", "first_token", "links"),
        *("transfer", "decode_queue", "links", "decoding", "slow_gaps", "decoding", "sending"),
    ]


def test_a_trace_file_has_each_span_at_its_time() -> None:
    events = trace_events([RECORD])["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["name"] != "request"]
    assert [event["dur"] for event in spans] == [span.duration_ns / 1_000 for span in RECORD.spans]
    assert json.loads(json.dumps(events)) == events


def test_a_part_of_a_later_gateway_has_its_name_alone() -> None:
    record = msgspec.structs.replace(RECORD, spans=[RecordSpan("novel", 0, RECORD.duration_ns)])
    assert "(100 %): novel" in tell_story(record)
    assert [event["args"] for event in trace_events([record])["traceEvents"]][-1] == {"meaning": "novel"}


def test_queries_are_written_as_they_are_read() -> None:
    query = RecordQuery(id="a b&c", tenant="t", missed=True, slowest=7)
    assert parse_query(query_path(query).partition("?")[2]) == query


def test_what_did_not_answer_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"10.0.0.1": RecordsPage([], [ProcessRecords(7, 10_000, 3)], [0, 8]), "10.0.0.2": "timed out"}
    monkeypatch.setattr(record_sources, "_ask", lambda tls, host, address, *rest: pages[address])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(2, 1, 6, "", (address, 80)) for address in pages])
    assert main(["explain", "gone", "--url", "http://gateways"]) == 1
    out, err = capsys.readouterr()
    assert out == "no record was found\n"
    assert "the gateway at 10.0.0.2:80 (timed out) did not answer" in err
    assert "gateway process 8 did not answer" in err
    assert "10000 are kept, 3 older ones are gone" in err


def test_processes_of_several_replicas_are_counted_although_their_pids_are_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {
        "10.0.0.1": RecordsPage([], [ProcessRecords(1, 10_000, 3, "a")]),
        "10.0.0.2": RecordsPage([], [ProcessRecords(1, 50, 0, "b")]),
    }
    monkeypatch.setattr(record_sources, "_ask", lambda tls, host, address, *rest: pages[address])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(2, 1, 6, "", (address, 80)) for address in pages])
    assert main(["explain", "gone", "--url", "http://gateways"]) == 1
    assert "10050 are kept, 3 older ones are gone" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://gateway:abc", "http://gateway:99999", "gateway:8000", "http://[::1"])
def test_an_address_that_is_none_is_refused_by_name(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", url]) != 0
    assert f"--url: {url!r} is not http(s)://HOST[:PORT]" in capsys.readouterr().err


def test_a_gateway_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", "http://127.0.0.1:1"]) != 0
    assert "no gateway answered: the gateway at 127.0.0.1:1" in capsys.readouterr().err


def test_link_keys_that_cannot_be_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", "http://127.0.0.1:1", "--link-keys", str(tmp_path / "none")]) != 0
    assert "--link-keys: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["http://gateway:99999", "http://gateway:port", "http://[::1", "ftp://gateway", "gateway:80"]
)
def test_a_url_that_is_none_is_refused_by_name(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", url]) != 0
    assert f"--url: {url!r} is not http(s)://HOST[:PORT]" in capsys.readouterr().err


def test_replicas_with_equal_pids_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ProcessRecords(1, 5, 2, "aaaa"), ProcessRecords(1, 7, 1, "bbbb")
    pages = {"10.0.0.1": RecordsPage([], [first]), "10.0.0.2": RecordsPage([], [second])}
    found = ask_all(pages, monkeypatch)
    assert (found.kept, found.fell_out) == (12, 3)


def test_a_gateway_with_two_addresses_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    page = RecordsPage([RECORD], [ProcessRecords(1, 5, 2, "aaaa")])
    found = ask_all({"127.0.0.1": page, "::1": page}, monkeypatch)
    assert (found.kept, found.fell_out) == (5, 2)
    assert found.records == [RECORD]


def test_addresses_beyond_the_limit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sources, "MAX_REPLICAS", 1)
    found = ask_all({"10.0.0.1": RecordsPage([], []), "10.0.0.2": RecordsPage([], [])}, monkeypatch)
    assert found.silent == ("the gateway at 10.0.0.2:80 (not asked: over 1)",)


def test_replicas_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Barrier(2, timeout=60.0)

    def ask(*_: object) -> RecordsPage:
        asked.wait()
        return RecordsPage([], [])

    monkeypatch.setattr(record_sources, "_ask", ask)
    infos = [(2, 1, 6, "", (address, 80)) for address in ("10.0.0.1", "10.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: infos)
    assert record_sources.ask_gateways("http://gateways", RecordQuery(), None).silent == ()


def ask_all(pages: dict[str, RecordsPage], monkeypatch: pytest.MonkeyPatch) -> record_sources.FoundRecords:
    """Ask a name with these addresses."""
    monkeypatch.setattr(record_sources, "_ask", lambda tls, host, address, *rest: pages[address])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(2, 1, 6, "", (address, 80)) for address in pages])
    return record_sources.ask_gateways("http://gateways", RecordQuery(), None)


def test_a_host_that_no_name_can_have_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", "http://a..b"]) != 0
    assert "--url: a..b: " in capsys.readouterr().err


def test_workers_have_the_names_of_status_next_to_those_of_the_access_log() -> None:
    """Found: a story named workers by epochs and addresses, which no other command shows after a restart."""
    known = {"70707070": "127.0.0.1:1", "64646464": "127.0.0.1:2"}
    found = FoundRecords([msgspec.structs.replace(RECORD, workers=known)], 1, 0, ())
    [record] = with_names(found, {"127.0.0.1:2": "chat-decode-0"}).records
    story = tell_story(record)
    assert "blamed on 64646464 at chat-decode-0 (127.0.0.1:2)" in story
    assert any(line.endswith("worker 64646464 at chat-decode-0 (127.0.0.1:2)") for line in story.splitlines())
    assert "worker 70707070 at 127.0.0.1:1)" in story.splitlines()[1], "it has no name here"
