"""A Prometheus on this machine reads all processes, with the labels that dashboards choose by."""

from __future__ import annotations

from baton_local.fleet.record import ProcessRecord, RunRecord, TargetRecord
from baton_local.fleet.scrape_targets import scrape_targets


def process(name: str, role: str, port: int | None) -> ProcessRecord:
    host = None if port is None else "127.0.0.1"
    return ProcessRecord(name, role, "ready", "r", 1, 1, host, port)


def test_every_process_with_an_address_is_a_target_with_its_deployment() -> None:
    processes = (
        process("gateway", "gateway", 8000),
        process("prefill-0", "prefill", 7001),
        process("d", "decode", None),
    )
    target = TargetRecord(1.0, 95.0)
    record = RunRecord("chat", "team", 1, "http://127.0.0.1:8000", "m", True, "", target, target, processes)
    of_chat = {"namespace": "team", "deployment": "chat"}
    assert scrape_targets(record, "127.0.0.1:9000") == [
        {"targets": ["127.0.0.1:8000"], "labels": {**of_chat, "pod": "gateway"}},
        {"targets": ["127.0.0.1:7001"], "labels": {**of_chat, "pod": "prefill-0"}},
        {"targets": ["127.0.0.1:9000"], "labels": {}},
    ]
