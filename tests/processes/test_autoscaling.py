"""`baton up` sizing its pools with real processes: asleep at first, woken by requests, grown by load, remembered.

Workers keep time instead of computing, so that the test is about starting, stopping and deciding.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest
from baton_testing.processes.child_process import get_text, wait_for
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

REQUESTS = 120
DEADLINE_S = 150.0


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


def test_a_sleeping_deployment_wakes_for_a_flood_and_serves_all_of_it(tmp_path: Path, prepared: Prepared) -> None:
    pool = {"replicas": {"min": 0, "max": 2}}
    model = {"source": f"file://{tiny_llama.FOLDER}", "servedName": "paced", "maxContextTokens": 4096}
    asleep_after = {"scaleToZeroAfter": "600s"}
    document = manifest("sleepy", model=model, prefill=pool, decode=pool, autoscaling=asleep_after)
    with Up(tmp_path, document, "--emulate", "h200:llama-3.1-8b@1", starts=prepared) as up:
        endpoint = up.await_ready()
        asleep = up.status()
        assert asleep["workers"] == [], "ready without a worker"
        assert asleep["emulated"]
        assert asyncio.run(_flood(endpoint)) == [8] * REQUESTS
        starts = [line for line in up.child.output().splitlines() if "for a first pair" in line]
        assert len(starts) == 1, up.child.output()
        assert "prefill 0→1" in starts[0]
        assert "decode 0→1" in starts[0]
        awake = wait_for(lambda: _decided(up), "a decision from the gateway's reports", 180)
        assert awake["wanted"]["prefill"] >= 1
        memory = up.run_dir.sizing
        assert 0 < memory.stat().st_size <= 4096
        page = get_text(_link_address(up) + "/metrics")
        assert re.search(
            r'baton_pool_workers\{deployment="sleepy",namespace="tests",role="decode",state="wanted"\} [1-9]', page
        )
    assert memory.exists(), "what sizing remembers outlives the run"


def _decided(up: Up) -> Any:
    status = up.status()
    return status if "tokens/s at +" in status["decision"] else None


def _link_address(up: Up) -> str:
    """Where the gateway's link goes, as its log says."""
    log = next(up.run_dir.logs.glob("*gateway*.log")).read_text()
    match = re.search(r"linked to (http://127\.0\.0\.1:\d+)/", log)
    assert match, log
    return match.group(1)
