"""The gateway as a program: start, refusal to start, several processes on one port, drain, death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from baton_gateway.settings import SettingsError, parse_settings
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, ids_of, until

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
FINISHED = 'baton_gateway_requests_total{outcome="finished"} 20.0'
FLAGS = ("--keys=k", "--prefill-discovery=file:p", "--decode-discovery=file:d")


@asynccontextmanager
async def program(pool: FakePool, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """A running gateway and its announcement."""
    announce = pool.root / "gateway.json"
    command = [sys.executable, "-m", "baton_gateway", *pool.flags, f"--announce={announce}", *flags]
    defaults = ("--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-level=warning")
    environment = os.environ | {"BATON_PARENT_PID": str(os.getpid())}
    process = await asyncio.create_subprocess_exec(*command, *defaults, env=environment)
    try:
        await until(lambda: announce.exists() or process.returncode is not None, 120.0)
        yield process, json.loads(announce.read_text())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def get(http: aiohttp.ClientSession, port: int, path: str) -> Any:
    async with http.get(f"http://127.0.0.1:{port}{path}") as got:
        return await (got.json() if got.content_type == "application/json" else got.text())


async def until_told(http: aiohttp.ClientSession, port: int, path: str, holds: Callable[[Any], bool]) -> Any:
    """A page once it says so. One that children have a part in is without those that do not answer in time."""
    for _ in range(1_200):
        page = await get(http, port, path)
        if holds(page):
            return page
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{path}: {page}")


async def until_linked(http: aiohttp.ClientSession, admin_port: int, processes: int) -> Any:
    linked = [2] * processes
    return await until_told(
        http, admin_port, "/state", lambda page: [child["workers_linked"] for child in page["processes"]] == linked
    )


def pids_of(state: Any) -> set[int]:
    return {child["pid"] for child in state["processes"]}


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)])
async def test_one_process_serves_drains_when_told_to_and_ends_with_0(
    signals: Sequence[signal.Signals], pool: FakePool, http: aiohttp.ClientSession
) -> None:
    async with program(pool) as (process, at):
        state = await until_linked(http, at["admin_port"], 1)
        assert at["pid"] == state["processes"][0]["pid"] == process.pid
        for worker in pool.workers:
            worker.script = lambda request: ids_of("word " * 20)
        pool.decode[0].hold = True  # after the first token, so that the stream outlasts the requests meanwhile
        url = f"http://127.0.0.1:{at['port']}{CHAT}"
        async with http.post(url, json=BODY | {"stream": True, "max_tokens": 20}) as got:
            await got.content.readuntil(b"\n\n")
            for number in signals:
                process.send_signal(number)
            async with http.get(f"http://127.0.0.1:{at['port']}/health/ready") as ready:
                assert ready.status == 503
            async with http.post(url, json=BODY) as late:
                assert (late.status, (await late.json())["error"]["code"]) == (503, "shutting_down")
            pool.decode[0].hold = False
            assert (await got.text()).endswith("data: [DONE]\n\n")
        assert await process.wait() == 0


async def test_several_processes_share_a_port_and_speak_with_one_voice(
    pool: FakePool, http: aiohttp.ClientSession
) -> None:
    async with program(pool, "--processes=2", "--drain-s=0") as (process, at):
        state = await until_linked(http, at["admin_port"], 2)
        assert len(state["workers"]) == 2
        url = f"http://127.0.0.1:{at['port']}{CHAT}"
        for _ in range(20):
            async with (
                aiohttp.ClientSession() as session,  # a connection of its own
                session.post(url, json=BODY) as got,
            ):
                assert (await got.json())["choices"][0]["message"]["content"] == ANSWER
        links = {message.request for message in pool.prefill[0].received}
        assert len(links) == 20
        for port in (at["port"], at["admin_port"]):
            await until_told(http, port, "/metrics", lambda page: FINISHED in page)
        state = await until_told(
            *(http, at["admin_port"], "/state"),
            lambda page: (len(page["processes"]), page["latency"]["ttft"]["sketch"]["count"]) == (2, 20),
        )
        await _stop_one_child_for_a_while(http, at, state)
        await _kill_one_child(http, process, at, state)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        await process.wait()
        await until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))


async def _stop_one_child_for_a_while(http: aiohttp.ClientSession, at: dict[str, Any], state: dict[str, Any]) -> None:
    """Found by SIGSTOP: a process that had once been slow to answer its parent was never asked again."""
    pids = pids_of(state)
    stopped = min(pids)
    os.kill(stopped, signal.SIGSTOP)
    try:
        await until_told(http, at["admin_port"], "/state", lambda page: pids_of(page) == pids - {stopped})
    finally:
        os.kill(stopped, signal.SIGCONT)
    await until_told(http, at["admin_port"], "/state", lambda page: pids_of(page) == pids)


async def _kill_one_child(
    http: aiohttp.ClientSession, process: asyncio.subprocess.Process, at: dict[str, Any], state: dict[str, Any]
) -> None:
    pids = [child["pid"] for child in state["processes"]]
    assert process.pid not in pids
    os.kill(pids[0], signal.SIGKILL)

    def is_whole(page: Any) -> bool:
        pids_linked = {child["pid"] for child in page["processes"] if child["workers_linked"] == 2}
        return len(pids_linked) == 2 and pids[0] not in pids_linked

    assert pids[1] in pids_of(await until_told(http, at["admin_port"], "/state", is_whole))
    await until_told(http, at["port"], "/metrics", lambda page: FINISHED in page)
    async with http.post(f"http://127.0.0.1:{at['port']}{CHAT}", json=BODY) as got:
        assert got.status == 200


async def test_a_program_whose_parent_is_gone_ends(pool: FakePool) -> None:
    command = [sys.executable, "-m", "baton_gateway", *pool.flags, "--listen=127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | {"BATON_PARENT_PID": "1"})
    async with asyncio.timeout(120):
        assert await process.wait() == 1


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_taken_port_is_one_clear_line(pool: FakePool, processes: int) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        flags = (*pool.flags, f"--listen=127.0.0.1:{port}", f"--processes={processes}")
        code, line = await _refused(*flags)
    assert code == 2
    assert line == f"baton-gateway: --listen: 127.0.0.1:{port}: Address already in use\n"


async def test_a_missing_key_directory_is_one_clear_line(tmp_path: Path) -> None:
    code, line = await _refused(f"--keys={tmp_path / 'none'}", *FLAGS[1:])
    assert code == 2
    assert line.count("\n") == 1
    assert "none" in line


async def _refused(*flags: str) -> tuple[int, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "baton_gateway", *flags, stderr=pipe)
    async with asyncio.timeout(120):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((), "--keys"),
        ((*FLAGS, "--colour=red"), "--colour"),
        ((*FLAGS, "--listen=nowhere"), "--listen"),
        ((*FLAGS, "--listen=a:99999"), "--listen"),
        ((*FLAGS, "--processes=0"), "--processes"),
        ((*FLAGS, "--processes=many"), "--processes"),
        ((*FLAGS, "--admin-listen=0.0.0.0:1"), "--admin-listen"),
        ((*FLAGS, "--decode-discovery=nonsense"), "--decode-discovery"),
        ((*FLAGS, "--suspect-s=4"), "--suspect-s"),
        ((*FLAGS, "--dead-s=nan"), "--dead-s"),
        ((*FLAGS, "--max-running=-1"), "--max-running"),
        ((*FLAGS, "--disaggregation=perhaps"), "--disaggregation"),
        ((*FLAGS, "--config=/nowhere/file.json"), "/nowhere/file.json"),
    ],
)
def test_bad_settings_are_named(flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_settings(list(flags))


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text('{"max_running": 5, "max_queued": 6, "disaggregation": "never"}')
    settings = parse_settings([*FLAGS, f"--config={path}", "--max-queued=7"])
    assert (settings.max_running, settings.max_queued, settings.disaggregation) == (5, 7, "never")
    assert settings.max_queue_s is None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"colour": 1}', '{"max_running": [1]}', '{"max_running": true}', '{"listen": "a:1"}']
)
def test_a_bad_settings_file_names_its_field(content: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"gateway\.json"):
        parse_settings([*FLAGS, f"--config={path}"])


async def test_the_admin_listener_has_the_records_of_all_processes(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with program(pool, "--processes=2") as (_, at):
        await until_linked(http, at["admin_port"], 2)
        for number in range(4):
            headers = {"X-Request-Id": f"asked-{number}"}
            url = f"http://127.0.0.1:{at['port']}{CHAT}"
            # each over a connection of its own, perhaps to the other process
            async with aiohttp.ClientSession() as fresh, fresh.post(url, json=BODY, headers=headers) as got:
                assert got.status == 200
        page = await until_told(http, at["admin_port"], "/requests?slowest=9", lambda page: len(page["records"]) == 4)
    assert {record["id"] for record in page["records"]} == {f"asked-{number}" for number in range(4)}
    assert (len(page["processes"]), page["silent"]) == (2, [])


async def test_the_page_has_all_processes_on_both_listeners(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with program(pool, "--processes=2") as (_, at):
        await until_linked(http, at["admin_port"], 2)
        for number in range(4):
            headers = {"X-Request-Id": f"asked-{number}"}
            url = f"http://127.0.0.1:{at['port']}{CHAT}"
            async with aiohttp.ClientSession() as fresh, fresh.post(url, json=BODY, headers=headers) as got:
                assert got.status == 200

        def is_whole(page: dict[str, Any]) -> bool:
            return len(page["slowest"]) == 4 and len(page["processes"]) == 2 and len(page["workers"]) == 2

        for port in (at["port"], at["admin_port"]):
            page = await until_told(http, port, "/ui/data.json", is_whole)
            finished = page["series"]["fields"].index("finished")
            assert sum(slot[finished] for slot in page["series"]["slots"]) == 4
            assert (page["silent"], page["viewer"]["sees_all"]) == ([], True)
            async with http.get(f"http://127.0.0.1:{port}/ui/") as got:
                assert (got.status, got.content_type) == (200, "text/html")
        for path in ("/ui/data.json", "/state", "/requests", "/metrics"):
            url, rebound = f"http://127.0.0.1:{at['admin_port']}{path}", {"Host": "rebound.example"}
            async with http.get(url, headers=rebound) as got:
                assert got.status == 403
        async with http.get(f"http://127.0.0.1:{at['admin_port']}/ui/data.json?other=1") as got:
            assert got.status == 400
