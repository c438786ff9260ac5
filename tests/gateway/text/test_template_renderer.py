"""Rendering is shared fairly, ends in time, and holds nothing for those who leave."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from baton_gateway.errors import Problem, RefusedError
from baton_gateway.helper_processes import piped_process, process_lane
from baton_gateway.helper_processes.process_lane import ProcessHealth, longest_lasting
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.template_renderer import PromptBudget, TemplateRenderer
from baton_testing.gateway.apart_bytes import at_byte
from baton_testing.gateway.made_tokenizers import bundle_hash

SAID = "{% for message in messages %}{{ message.content }}{% endfor %}"
SLOW = (
    "{% if 'slow' in messages[0].content %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}{% if 'broken' in messages[0].content %}{{ 1 / 0 }}{% endif %}" + SAID
)
LIMIT_S = 0.1


def bundle(template: str) -> Bundle:
    return Bundle(bundle_hash(template.encode()), "{}", template, {}, ())


def chat(*texts: str, role: str = "user") -> Conversation:
    return Conversation(tuple({"role": role, "content": text} for text in texts))


@pytest.fixture
async def renderer() -> AsyncIterator[TemplateRenderer]:
    renderer = TemplateRenderer(LIMIT_S)
    await renderer.start()
    yield renderer
    await renderer.stop()


async def refuse(renderer: TemplateRenderer, template: str, said: Conversation, who: str = "a") -> Problem:
    with pytest.raises(RefusedError) as refusal:
        await renderer.render(bundle(template), said, who)
    return refusal.value.problem


async def test_clients_that_hang_up_in_a_long_answer_stop_nobodys_chat() -> None:
    """One was enough: its process was waited for with its answer half read, and everybody else for the process."""
    renderer = TemplateRenderer()
    long, tasks = chat("x" * 400_000), asyncio.all_tasks()
    assert (await renderer.render(bundle(SAID), long)).text
    pid = renderer._long.process.pid
    for place in range(1, 400_000, 64 << 10):
        asked = asyncio.create_task(renderer.render(bundle(SAID), long, "leaves"))
        at_byte(renderer._long.process, place, asked.cancel)
        await asyncio.wait([asked], timeout=30.0)
        assert asked.cancelled()
    assert await renderer.render(bundle(SAID), chat("mine " * 5_000), "stays") == RenderedChat("mine " * 5_000)
    assert renderer._long.process.pid == pid
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    await renderer.stop()


async def test_what_a_tenant_hangs_up_on_is_not_ahead_of_others(renderer: TemplateRenderer) -> None:
    await renderer.render(bundle(SLOW), chat("x"))
    gone = [asyncio.create_task(renderer.render(bundle(SLOW), chat(f"slow {n}"), "a")) for n in range(20)]
    await asyncio.sleep(0)
    mine = asyncio.create_task(renderer.render(bundle(SLOW), chat("mine"), "b"))
    for task in gone:
        task.cancel()
        await asyncio.sleep(0)
    assert await mine == RenderedChat("mine")
    await asyncio.wait(gone)
    assert len(renderer._fatal) == 1, "only the first had begun"


async def test_tenants_take_turns(renderer: TemplateRenderer) -> None:
    order: list[str] = []

    async def render(who: str) -> None:
        await renderer.render(bundle(SAID), chat("x"), who)
        order.append(who)

    async with asyncio.TaskGroup() as group:
        for who in ["a"] * 10 + ["b", "c"]:
            group.create_task(render(who))
    assert order[:4] == ["a", "a", "b", "c"]


async def test_a_conversation_that_takes_too_long_is_its_clients_fault_and_tried_once(
    renderer: TemplateRenderer, caplog: pytest.LogCaptureFixture
) -> None:
    await renderer.render(bundle(SLOW), chat("x"))
    first = renderer._short.process.pid
    told = await refuse(renderer, SLOW, chat("slow"))
    assert (told.status, told.param, told.code) == (400, "messages", "template_failed")
    assert not renderer._short.process.is_running
    assert await renderer.render(bundle(SLOW), chat("fine"), "b") == RenderedChat("fine")
    second = renderer._short.process.pid
    assert await refuse(renderer, SLOW, chat("slow"), "other") == told
    assert renderer._short.process.pid == second != first
    assert caplog.messages == []
    assert renderer.health_problems(time.monotonic()) == []


async def test_a_template_that_fails_with_some_messages_is_not_the_models_failure(renderer: TemplateRenderer) -> None:
    for _ in range(2):
        told = await refuse(renderer, SLOW, chat("broken"))
        assert (told.status, told.param, told.code) == (400, "messages", "template_failed")
        assert "ZeroDivisionError" in told.message


async def test_a_template_that_renders_nothing_is_the_models_failure_and_rests(renderer: TemplateRenderer) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert (await refuse(renderer, endless, chat("x"))).status == 500
    began = renderer._short.process.pid
    assert (await refuse(renderer, endless, chat("y"))).status == 500
    assert renderer._short.process.pid == began, "nobody asked it"


async def test_whatever_a_template_raises_is_a_failure_and_no_crash(renderer: TemplateRenderer) -> None:
    pid = renderer._short.process.pid
    nested = "{% for x in y %}" * 30 + "{% endfor %}" * 30
    for template in ("{{ x.y.z() }}", nested, "{{ 'x'.encode('none') }}", "{{ '{0.a}'.format() }}"):
        assert (await refuse(renderer, template, chat("x"))).status == 500
    assert renderer._short.process.pid == pid


async def test_short_chats_do_not_wait_behind_a_long_one_and_a_stop_waits_for_neither() -> None:
    renderer = TemplateRenderer(render_s=3600.0)
    long = asyncio.create_task(renderer.render(bundle(SLOW), chat("slow " * 10_000), "a"))
    assert await renderer.render(bundle(SLOW), chat("short"), "a") == RenderedChat("short")
    waiting = asyncio.create_task(renderer.render(bundle(SLOW), chat("slow " * 10_001), "b"))
    await asyncio.sleep(0)
    assert not long.done()
    await renderer.stop()
    await asyncio.wait([long])
    assert long.cancelled()
    waiting.cancel()
    await asyncio.wait([waiting])
    await renderer.stop()


CUT = [
    (SAID, chat("x" * 1_001), True),
    (SAID, chat("x" * 501, "y", "z" * 500), True),
    (SAID, chat("é" * 501), True),
    (SAID, chat("x" * 1_000), False),
    (SAID, chat("x" * 1_001, role="assistant"), False),
    ("{{ messages[0].content | trim }}", chat("x" + " " * 5_000), False),
    ("{{ messages[-1].content }}", chat("x" * 5_000, "y"), False),
    ("{{ messages[0].content[:100] }}", chat("x" * 5_000), False),
    ("{{ messages[0].content | truncate(100) }}", chat("x" * 5_000), False),
    ("{{ 1 / 0 if messages | length > 1 }}{{ messages[0].content }}", chat("x" * 5_000), False),
]


async def test_what_cannot_fit_is_refused_unseen_and_nothing_that_a_template_cuts(renderer: TemplateRenderer) -> None:
    for template, said, is_refused in CUT * 2:
        try:
            await renderer.render(bundle(template), said, "a", PromptBudget(100, 10))
            was_refused = False
        except RefusedError as refusal:
            was_refused = refusal.problem.code == "context_length_exceeded"
        assert was_refused is is_refused, (template, said)
        await renderer.render(bundle(template), said, "a", PromptBudget(100, None))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EAGAIN])
async def test_without_a_process_chats_are_told_at_once_and_served_when_there_is_one(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> piped_process.StartedProcess:
        raise OSError(number, os.strerror(number))

    renderer = TemplateRenderer(LIMIT_S)
    with monkeypatch.context() as patch:
        patch.setattr(piped_process, "run_module", refused)
        await renderer.start()
        told = await refuse(renderer, SAID, chat("x"))
        assert (told.status, told.code, told.retry_after_s) == (503, "template_unavailable", 1)
        await renderer.recheck()
        [problem] = renderer.health_problems(time.monotonic() + 40.0)
        assert str(problem) == (
            f"the process for chat templates: no answer (it does not start: {os.strerror(number)}), for 40 s"
        )
    await renderer.recheck()
    assert renderer.health_problems(time.monotonic() + 40.0) == []
    assert await renderer.render(bundle(SAID), chat("x")) == RenderedChat("x")
    await renderer.stop()


async def test_a_process_that_stops_again_and_again_is_told_as_such() -> None:
    renderer = TemplateRenderer(render_s=0.05)
    await renderer.start()
    ask = renderer._short.process.ask

    async def stopped(question: bytes, within_s: float) -> object:
        await renderer._short.process.start()
        assert renderer._short.process.pid is not None
        os.kill(renderer._short.process.pid, signal.SIGSTOP)
        return await ask(question, within_s)

    setattr(renderer._short.process, "ask", stopped)  # noqa: B010
    told = await refuse(renderer, SAID, chat("x"))
    assert (told.status, told.code) == (503, "template_unavailable")
    assert len(renderer.health_problems(time.monotonic())) == 1
    setattr(renderer._short.process, "ask", ask)  # noqa: B010
    assert await renderer.render(bundle(SAID), chat("x")) == RenderedChat("x")
    assert renderer.health_problems(time.monotonic()) == []
    await renderer.stop()


async def test_a_turn_that_does_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = TemplateRenderer(render_s=3600.0)
    monkeypatch.setattr(process_lane, "TURN_S", 0.05)
    stuck = asyncio.create_task(renderer.render(bundle(SLOW), chat("slow"), "a"))
    await asyncio.sleep(0)
    told = await refuse(renderer, SAID, chat("x"), "b")
    assert (told.status, told.code) == (503, "template_unavailable")
    assert renderer.health_problems(time.monotonic()) == []
    [problem] = renderer.health_problems(time.monotonic() + 100_000.0)
    assert "a question does not end" in problem.description
    await renderer.stop()
    await asyncio.wait([stuck])


def test_health_counts_from_the_first_failure_to_the_next_answer() -> None:
    health = ProcessHealth("x", max_hold_s=50.0)
    assert health.problem(0.0, 0.0) is None
    health.record_failure("why", 10.0)
    health.record_failure("later", 20.0)
    assert longest_lasting([fault] if (fault := health.problem(0.0, 39.0)) else [], 30.0) is None
    assert (
        str(longest_lasting([fault] if (fault := health.problem(0.0, 40.0)) else [], 30.0))
        == "x: no answer (later), for 30 s"
    )
    health.record_success()
    assert health.problem(50.0, 41.0) is None
    assert str(health.problem(51.0, 41.0)) == "x: a question does not end, for 51 s"
