"""`baton up` moves workers from pool to pool without a restart, and starts one that died again as what it was."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes import scripted_up
from baton_testing.processes.baton_up import Up, manifest
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

QUESTION = "Count to one hundred."
STREAMS = 4


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes") / "sizes"
    scripted_up.write(path, 2, 1)
    return path


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, sizes: Path, prepared: Prepared) -> Iterator[Up]:
    pool = {"replicas": {"min": 1, "max": 3}, "engine": {"kvCacheMemory": "16Mi"}}
    document = manifest("flippy", prefill=pool, decode=pool, autoscaling={"flips": True})
    program = ("-m", "baton_testing.processes.scripted_up", str(sizes))
    paths = os.pathsep.join(["tests/support", os.environ.get("PYTHONPATH", "")])
    folder = tmp_path_factory.mktemp("up")
    with Up(folder, document, program=program, extra={"PYTHONPATH": paths}, starts=prepared) as running:
        running.await_ready()
        wait_for(lambda: _pools(running) == {"prefill": 2, "decode": 1} or None, "three ready workers", 180)
        yield running


def _pools(up: Up) -> dict[str, int]:
    return {role: pool["ready"] for role, pool in up.status()["pools"].items()}


def _workers(up: Up) -> dict[str, Any]:
    return {worker["name"]: worker for worker in up.status()["workers"]}


def _answer(client: openai.OpenAI) -> str:
    chunks = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True, max_tokens=320
    )
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def _await_flips(up: Up, count: int) -> list[float]:
    """Seconds of each flip that was carried out, from the output of `baton up`; waits for `count` flips."""

    def flip_durations() -> list[float] | None:
        durations = re.findall(r"(?:prefill|decode) after ([0-9.]+) s \(flip \d+\)", up.child.output())
        return [float(seconds) for seconds in durations] if len(durations) >= count else None

    return wait_for(flip_durations, f"{count} flips", 120)


def test_pools_change_their_sizes_by_flips_while_answers_stream(up: Up, sizes: Path, record_property: Any) -> None:
    expected = tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids(QUESTION), 320).ids)
    before = _workers(up)
    with (
        openai.OpenAI(base_url=f"{up.endpoint}/v1", api_key="unused", max_retries=0, timeout=60) as client,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        running = [pool.submit(_answer, client) for _ in range(2 * STREAMS)]
        for number, (prefill, decode) in enumerate(((1, 2), (2, 1), (1, 2)), 1):
            scripted_up.write(sizes, prefill, decode)
            _await_flips(up, number)
            running += [pool.submit(_answer, client) for _ in range(STREAMS)]
        assert [future.result(120) for future in running] == [expected] * (5 * STREAMS)
    record_property("flips, seconds", took := _await_flips(up, 3))
    print(f"flips took {took}")
    after = _workers(up)
    assert {name: worker["pid"] for name, worker in after.items()} == {n: w["pid"] for n, w in before.items()}
    assert all(worker["starts"] == 1 for worker in after.values())
    moved = [name for name in after if after[name]["role"] != before[name]["role"]]
    assert len(moved) == 1
    assert after[moved[0]]["role"] == "decode"
    wait_for(lambda: _pools(up) == {"prefill": 1, "decode": 2} or None, "the sizes to be reported", 60)


def test_a_flipped_worker_that_dies_comes_back_in_its_present_role(up: Up, sizes: Path) -> None:
    scripted_up.write(sizes, 1, 2)
    wait_for(lambda: _pools(up) == {"prefill": 1, "decode": 2} or None, "one prefill and two decode workers", 180)
    name, before = next((n, w) for n, w in _workers(up).items() if "prefill" in n and w["role"] == "decode")
    os.kill(before["pid"], signal.SIGKILL)

    def back() -> Any:
        worker = _workers(up).get(name)
        return worker if worker and worker["starts"] == 2 and worker["link"] == "live" else None

    assert wait_for(back, "its next process", 180)["role"] == "decode"
    wait_for(lambda: _pools(up) == {"prefill": 1, "decode": 2} or None, "the sizes to be reported", 60)
    status = up.run("status")
    assert re.search(rf"^{name} +decode ", status.stdout, re.MULTILINE), status
