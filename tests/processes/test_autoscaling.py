"""`baton up` sizing its pools with real processes: asleep at first, woken by requests, grown by load, remembered.

Workers keep time instead of computing, so that the test is about starting, stopping and deciding.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import Child, get_text, run_to_end, wait_for

pytestmark = pytest.mark.processes

BATON = ("-m", "baton_local")
REQUESTS = 120
DEADLINE_S = 150.0


def manifest(folder: Path) -> Path:
    pool = {"replicas": {"min": 0, "max": 2}}
    body = {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "sleepy", "namespace": "tests"},
        "spec": {
            "model": {"source": f"file://{tiny_llama.FOLDER}", "servedName": "paced", "maxContextTokens": 4096},
            "slo": {"ttft": {"target": "500ms"}, "tpot": {"target": "50ms"}},
            "prefill": pool,
            "decode": pool,
            "autoscaling": {"scaleToZeroAfter": "600s"},
        },
    }
    path = folder / "sleepy.yaml"
    path.write_text(json.dumps(body))
    return path


async def _flood(endpoint: str) -> list[int]:
    """Tokens of each answer; raises when one is refused, cut or late."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def one(index: int) -> int:
            body = {"model": "paced", "prompt": [20 + index % 50] * 64, "max_tokens": 8, "ignore_eos": True}
            async with session.post(f"{endpoint}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                return int((await response.json())["usage"]["completion_tokens"])

        return list(await asyncio.gather(*(one(index) for index in range(REQUESTS))))


def test_a_sleeping_deployment_wakes_for_a_flood_and_serves_all_of_it(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    extra = {"XDG_RUNTIME_DIR": str(runtime)}
    command = (*BATON, "up", "-f", str(manifest(tmp_path)), "--port", "0", "--emulate", "h200:llama-3.1-8b@1")
    up = Child("up", command, tmp_path, extra)
    try:
        endpoint = _ready(up)
        asleep = _status(extra)
        assert asleep["workers"] == [], "ready without a worker"
        assert asleep["emulated"]
        assert asyncio.run(_flood(endpoint)) == [8] * REQUESTS
        starts = [line for line in up.output().splitlines() if "for a first pair" in line]
        assert len(starts) == 1, up.output()
        assert "prefill 0→1" in starts[0]
        assert "decode 0→1" in starts[0]
        awake = wait_for(lambda: _decided(extra), "a decision from what the gateway told", 60)
        assert awake["wanted"]["prefill"] >= 1
        memory = runtime / "baton" / "tests.sleepy" / "sizing.json"
        assert 0 < memory.stat().st_size <= 4096
        page = get_text(_link_address(up, runtime) + "/metrics")
        assert re.search(
            r'baton_pool_workers\{deployment="sleepy",namespace="tests",role="decode",state="wanted"\} 1', page
        )
    finally:
        up.stop(40)
    assert memory.exists(), "what sizing remembers outlives the run"


def _ready(up: Child) -> str:
    def ready() -> str | None:
        assert up.is_running(), up.output()
        found = re.search(r"^ready (http://\S+)$", up.output(), re.MULTILINE)
        return found.group(1) if found else None

    endpoint = wait_for(ready, "the ready line", 90)
    up.family()
    return endpoint


def _status(extra: dict[str, str]) -> Any:
    ended = run_to_end((*BATON, "status", "--json"), 60, extra)
    assert ended.code == 0, ended.stderr
    return json.loads(ended.stdout)


def _decided(extra: dict[str, str]) -> Any:
    status = _status(extra)
    return status if "req/s at +" in status["decision"] else None


def _link_address(up: Child, runtime: Path) -> str:
    """Where the gateway's link goes, as its log says."""
    log = next((runtime / "baton" / "tests.sleepy" / "logs").glob("*gateway*.log")).read_text()
    found = re.search(r"linked to (http://127\.0\.0\.1:\d+)/", log)
    assert found, log
    return found.group(1)
