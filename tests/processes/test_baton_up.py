"""`baton up` and its sister commands as a user runs them: one file in, a service out, nothing left over.

Where it ends by a signal or with its parent, all processes are started; elsewhere they are forked (`prepared`).
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import BATON, Up, manifest
from baton_testing.processes.child_process import orphans_of, run_to_end, wait_for
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

LONGEST = "Count to one hundred."


def worker(up: Up, role: str) -> Any:
    return next(worker for worker in up.status()["workers"] if worker["role"] == role)


def client_of(up: Up) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{up.endpoint}/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, prepared: Prepared) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up"), manifest("chat"), starts=prepared) as running:
        running.await_ready()
        yield running


def greeting(client: openai.OpenAI) -> str | None:
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": tiny_llama.GREETING[0]}], temperature=0
    )
    return reply.choices[0].message.content


def expected(question: str) -> str:
    return tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids(question), 320).ids)


def test_the_ready_endpoint_answers_at_once(up: Up) -> None:
    with client_of(up) as client:
        assert greeting(client) == tiny_llama.GREETING[1]


def test_status_shows_pools_workers_blocks_and_latencies(up: Up) -> None:
    with client_of(up) as client:
        greeting(client)

    def with_links() -> dict[str, Any] | None:
        status: dict[str, Any] = up.status()
        return status if all(worker["link"] for worker in status["workers"]) else None

    status = wait_for(with_links, "a gateway that answers, however busy the machine", 120.0)
    assert status["endpoint"] == up.endpoint
    assert {worker["role"] for worker in status["workers"]} == {"prefill", "decode"}
    for worker in status["workers"]:
        assert psutil.pid_exists(worker["pid"])
        assert 0 < worker["blocks_free"] <= worker["blocks_total"]
        assert worker["address"]
        assert worker["revision"]
        assert worker["link"] == "live"
    assert set(status["pools"]) == {"prefill", "decode"}
    assert status["slo"]["ttft"]["count"] >= 1
    assert 0 < status["slo"]["tpot"]["p95_ms"] < 10_000
    printed = up.run("status", "--json")
    assert printed.code == 0, printed.stderr
    assert json.loads(printed.stdout)["workers"] == up.status()["workers"]
    table = up.run("status")
    assert table.code == 0
    assert "prefill" in table.stdout
    assert "decode" in table.stdout


def test_ask_prints_the_answer(up: Up) -> None:
    ended = up.run("ask", "What is a block?", "--temperature", "0")
    assert ended.code == 0, ended.stderr
    assert expected("What is a block?") in ended.stdout
    whole = up.run("ask", "What is a block?", "--temperature", "0", "--no-stream")
    assert expected("What is a block?") in whole.stdout


def test_logs_shows_what_the_workers_wrote(up: Up) -> None:
    ended = up.run("logs")
    assert ended.code == 0
    assert "ready" in ended.stdout


def test_logs_hold_no_prompt_and_no_key(up: Up) -> None:
    secret = "a marker that no other process writes 8c1f"
    with client_of(up) as client:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": secret}], max_tokens=2)
    with pytest.raises(openai.BadRequestError), client_of(up) as client:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": secret}], temperature=9)
    keys = [path.read_text() for path in up.runtime.rglob("keys/*")]
    assert keys
    for log in up.runtime.rglob("*.log"):
        text = log.read_text(errors="replace")
        assert secret not in text
        assert not any(key in text for key in keys)


def test_a_killed_worker_is_restarted_and_the_stream_goes_on(up: Up) -> None:
    for role in ("decode", "prefill"):
        pid = worker(up, role)["pid"]
        with client_of(up) as client:
            stream = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": LONGEST}], temperature=0, stream=True
            )
            text = next(chunk.choices[0].delta.content or "" for chunk in stream)
            os.kill(pid, signal.SIGKILL)
            text += "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == expected(LONGEST)

        def back(role: str = role, dead: int = pid) -> int | None:
            pids = [w["pid"] for w in up.status()["workers"] if w["role"] == role and w["pid"] != dead]
            return pids[0] if pids and pids[0] else None

        wait_for(back, f"another {role} worker", 180)
        wait_for(lambda: served(up) or None, "the service to answer again", 120)


def served(up: Up) -> bool:
    try:
        with client_of(up) as client:
            return greeting(client) == tiny_llama.GREETING[1]
    except openai.APIError:
        return False


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"colour": "red"}, "spec.colour"), ({"decode": {"engine": {"kvCacheMemory": "1Mi"}}}, "kv")],
    ids=["an unknown field", "a pool without room for one sequence, which its worker finds"],
)
def test_a_bad_manifest_is_refused_by_field(
    tmp_path: Path, prepared: Prepared, changed: dict[str, Any], word: str
) -> None:
    with Up(tmp_path, manifest("bad", **changed), starts=prepared) as running:
        assert running.child.wait(180) != 0
        output = running.child.output()
        assert "Traceback" not in output
        assert word in output.lower()
        assert not orphans_of(running.child.family())


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("a: !!python/object/apply:os.system ['true']\n")
    with Up(tmp_path, path) as running:
        assert running.child.wait(120) == 2
        assert "Traceback" not in running.child.output()


def test_commands_without_a_deployment_say_so(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    for command in (("status",), ("ask", "Hello!"), ("logs",)):
        ended = run_to_end((*BATON, *command), 120, {"XDG_RUNTIME_DIR": str(runtime)})
        assert ended.code == 2
        assert "baton:" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_signal_stops_everything_cleanly(tmp_path: Path) -> None:
    with Up(tmp_path, manifest("chat")) as running:
        running.await_ready()
        family = running.child.family()
        assert len(family) >= 4
        running.child.send(signal.SIGINT)
        assert running.child.wait(120) == 0
        assert not orphans_of(family)


def test_a_signal_before_ready_stops_everything_cleanly(tmp_path: Path) -> None:
    with Up(tmp_path, manifest("chat")) as running:
        wait_for(lambda: len(running.child.family()) > 2 or None, "workers to be started", 120)
        running.child.send(signal.SIGTERM)
        assert running.child.wait(120) == 0
        assert not orphans_of(running.child.family())


TIED = """
import os, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], env={**os.environ, "BATON_PARENT_PID": str(os.getpid())})
"""


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "starting"])
def test_up_that_is_tied_to_a_parent_ends_with_it(tmp_path: Path, is_ready: bool) -> None:
    """The regression: a bench that was killed left its service running."""
    with Up(tmp_path, manifest("chat"), program=("-c", TIED, *BATON)) as running:
        if is_ready:
            running.await_ready()
        wait_for(lambda: len(running.child.family()) > 3 or None, "workers to be started", 120)
        family = running.child.family()
        running.child.send(signal.SIGKILL)
        running.child.wait(60)
        assert not orphans_of(family)


def test_kill_of_up_leaves_no_child(tmp_path: Path, prepared: Prepared) -> None:
    with Up(tmp_path, manifest("chat")) as running:
        running.await_ready()
        family = running.child.family()
        running.child.send(signal.SIGKILL)
        running.child.wait(60)
        assert not orphans_of(family)
    with Up(tmp_path, manifest("chat"), starts=prepared) as again:  # what it left on disk does no harm
        again.await_ready()
        assert served(again)


def test_several_workers_and_gateway_processes_share_the_work(tmp_path: Path, prepared: Prepared) -> None:
    two = {"replicas": {"min": 2, "max": 2}, "engine": {"kvCacheMemory": "16Mi"}}
    document = manifest("chat", prefill=two, decode=two, gateway={"processes": 2})
    with Up(tmp_path, document, starts=prepared) as running:
        running.await_ready()
        assert sorted(worker["role"] for worker in running.status()["workers"]) == ["decode"] * 2 + ["prefill"] * 2
        questions = tiny_llama.LONG_ANSWERS[:8]
        answers: dict[str, str | None] = {}

        def ask(question: str) -> None:
            with client_of(running) as client:  # a connection of its own, so that both gateway processes get some
                reply = client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": question}], temperature=0
                )
            answers[question] = reply.choices[0].message.content

        threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == {question: expected(question) for question in questions}

        def is_idle() -> bool | None:
            return (
                all(worker["blocks_free"] == worker["blocks_total"] for worker in running.status()["workers"]) or None
            )

        wait_for(is_idle, "all blocks to be free again", 60)
