"""Workers of several ranks, of unequal numbers in two pools: the same answers, all KV moved, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import openai
import psutil
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest
from baton_testing.processes.child_process import orphans_of, wait_for
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

QUESTIONS = tiny_llama.LONG_ANSWERS[:6]
MAX_TOKENS = 96
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["owl", "fox"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
ENDS_WITHIN_S = 60.0
"""Seconds in which a worker surely ended on a machine that is busy; it takes three at most."""


def flags_of(ranks: int, *more: str) -> tuple[str, ...]:
    return ("--tensor-parallel", str(ranks), *more)


@pytest.fixture(
    scope="module",
    params=[
        Shape(prefill_flags=flags_of(2), decode_flags=flags_of(1)),
        Shape(prefill_flags=flags_of(1), decode_flags=flags_of(2)),
    ],
    ids=["P2-D1", "P1-D2"],
)
def shape(request: pytest.FixtureRequest) -> Shape:
    unequal: Shape = request.param
    return unequal


def ask(client: openai.OpenAI, question: str) -> str:
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=MAX_TOKENS
    )
    return reply.choices[0].message.content or ""


def ranks_of(pid: int) -> list[psutil.Process]:
    """The rank processes of a worker, in order."""
    children = psutil.Process(pid).children()
    return sorted((child for child in children if "rank_main" in " ".join(child.cmdline())), key=lambda p: p.pid)


def test_answers_are_those_of_one_rank_and_every_head_arrives(deployment: Deployment, client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        texts = list(pool.map(lambda question: ask(client, question), QUESTIONS))
    for question, text in zip(QUESTIONS, texts, strict=True):
        assert text.startswith(tiny_llama.sure_text(question, MAX_TOKENS))
    (prefill,), (decode,) = deployment.of_role("prefill"), deployment.of_role("decode")
    states = prefill.state(), decode.state()
    assert [state["transfer"]["handovers"] for state in states] == [len(QUESTIONS)] * 2
    assert states[0]["block_bytes"] == states[1]["block_bytes"]


def test_answers_follow_schemas(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Tell me about owls."}],
        temperature=1.0,
        seed=4,
        response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}},
    )
    jsonschema.validate(json.loads(reply.choices[0].message.content or ""), SCHEMA)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, prepared: Prepared) -> Iterator[Up]:
    """A deployment whose prefill workers have two ranks, and whose decode workers have one."""
    usual = manifest("ranks")
    usual["spec"]["prefill"] = usual["spec"]["prefill"] | {"tensorParallel": 2}
    with Up(tmp_path_factory.mktemp("up"), usual, starts=prepared) as running:
        running.await_ready()
        yield running


def pid_of(up: Up, role: str) -> int | None:
    """The ready worker's process."""
    workers = [worker for worker in up.status()["workers"] if worker["role"] == role]
    return next((worker["pid"] for worker in workers if worker["pid"] and worker["link"]), None)


def await_other(up: Up, role: str, former: int | None) -> int:
    def other() -> int | None:
        pid = pid_of(up, role)
        return None if pid == former else pid

    return wait_for(other, f"another {role} worker", 180)


def log_of(up: Up, role: str) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(up.run_dir.logs.glob(f"*{role}*.log*")))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_loses_a_rank_ends_and_comes_back_whole(up: Up, number: signal.Signals) -> None:
    with openai.OpenAI(base_url=f"{up.endpoint}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        assert ask(client, QUESTIONS[0]).startswith(tiny_llama.sure_text(QUESTIONS[0], MAX_TOKENS))
        worker = await_other(up, "prefill", None)
        ranks = ranks_of(worker)
        assert len(ranks) == 2
        family = [psutil.Process(worker), *ranks]
        began_s = time.monotonic()
        os.kill(ranks[1].pid, number)
        assert orphans_of(family, ENDS_WITHIN_S) == []
        print(f"ended after {time.monotonic() - began_s:.2f} s")
        assert f"stopped because a rank was lost: rank 1 (process {ranks[1].pid})" in log_of(up, "prefill")
        await_other(up, "prefill", worker)
        assert ask(client, QUESTIONS[1]).startswith(tiny_llama.sure_text(QUESTIONS[1], MAX_TOKENS))


def test_nothing_is_left_of_a_deployment_with_ranks(tmp_path: Path) -> None:
    usual = manifest("gone")
    for role in ("prefill", "decode"):
        usual["spec"][role] = usual["spec"][role] | {"tensorParallel": 2}
    with Up(tmp_path, usual) as running:
        running.await_ready()
        family = running.child.family()
        assert sum("rank_main" in " ".join(process.cmdline()) for process in family) == 4
        running.child.send(signal.SIGKILL)
        assert orphans_of(family) == []
