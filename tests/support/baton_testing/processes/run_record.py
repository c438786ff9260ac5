"""The record of a run with one prefill and one decode worker, for tests of what is shown of it."""

from __future__ import annotations

from baton_local.fleet.record import ProcessRecord, RunRecord, TargetRecord

GATEWAY = ProcessRecord("chat-gateway", "gateway", "ready", "-g", 1, 10, "127.0.0.1", 8000, 9000)
PREFILL = ProcessRecord("chat-prefill-a-0", "prefill", "ready", "f-a", 1, 11, "127.0.0.1", 8001)
DECODE = ProcessRecord("chat-decode-b-0", "decode", "ready", "f-b", 2, 12, "127.0.0.1", 8002, pair_port=8003)
RUN_RECORD = RunRecord(
    name="chat",
    namespace="default",
    pid=9,
    endpoint="http://127.0.0.1:8000",
    served_name="tiny",
    ready=True,
    decision="hold",
    reasons={"prefill": "prefill 1: no request seen yet", "decode": "decode 1: forecast 9 answer tokens/s at +40 s"},
    limits={"prefill": (1, 1), "decode": (1, 3)},
    ranks={"prefill": 2, "decode": 1},
    ttft=TargetRecord(0.5, 95),
    tpot=TargetRecord(0.025, 95),
    processes=(GATEWAY, PREFILL, DECODE),
)
