"""The process that compiles: known shapes at once, hostile ones alone, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.helper_processes.helper_process import HelperProcess, NoAnswer
from baton_gateway.structured_outputs import format_compiler
from baton_gateway.structured_outputs.format_compiler import CompileOutcome, FormatCompiler
from baton_gateway.structured_outputs.output_format import choice_format, composed_format, json_format, named_schema


@pytest.fixture
async def told() -> list[CompileOutcome]:
    return []


@pytest.fixture
async def compiler(told: list[CompileOutcome]) -> AsyncIterator[FormatCompiler]:
    compiler = FormatCompiler(lambda how, seconds: told.append(how))
    yield compiler
    await compiler.stop()


async def test_a_shape_is_compiled_once(compiler: FormatCompiler, told: list[CompileOutcome]) -> None:
    shape = json_format({"type": "object", "properties": {"a": {"type": "integer"}}}, "f")
    first = await compiler.compile(shape, "one")
    assert await compiler.compile(shape, "other") == first
    with pytest.raises(RefusedError) as refusal:
        await compiler.compile(json_format({"not": {}}, "f"), "one")
    assert refusal.value.problem.param == "f"
    assert "'/not'" in refusal.value.problem.message
    assert told == [CompileOutcome.NEW, CompileOutcome.KNOWN, CompileOutcome.REFUSED]


async def test_what_is_kept_is_bounded(compiler: FormatCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_compiler, "MAX_CACHE_BYTES", 8_000)
    for number in range(20):
        await compiler.compile(choice_format([f"choice {number}"], "f"), "one")
        assert compiler.cached_bytes <= 8_000
    assert len(compiler._cache) in range(2, 19)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_dies_or_stands_still_costs_no_request(number: signal.Signals) -> None:
    compiler = FormatCompiler(compile_s=0.5)
    await compiler.start()
    assert compiler._lane.process.pid is not None
    os.kill(compiler._lane.process.pid, number)
    assert (await compiler.compile(choice_format(["a"], "f"), "one")).definition
    await compiler.stop()


async def test_a_definition_that_takes_too_long_is_tried_once_and_remembered(
    compiler: FormatCompiler, told: list[CompileOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def slow(question: bytes, within_s: float) -> NoAnswer:
        asked.append(question)
        return NoAnswer.TOO_SLOW

    monkeypatch.setattr(compiler._lane.process, "ask", slow)
    for _ in range(2):
        with pytest.raises(RefusedError) as refusal:
            await compiler.compile(choice_format(["a"], "f"), "one")
        assert "too complex" in refusal.value.problem.message
    assert (told, len(asked)) == ([CompileOutcome.REFUSED, CompileOutcome.REFUSED], 1)


async def test_a_process_without_processor_time_says_nothing_of_the_definition(
    compiler: FormatCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def starved(question: bytes, within_s: float) -> NoAnswer:
        return NoAnswer.STALLED

    with monkeypatch.context() as patch:
        patch.setattr(compiler._lane.process, "ask", starved)
        with pytest.raises(RefusedError) as refusal:
            await compiler.compile(choice_format(["a"], "f"), "one")
        assert (refusal.value.problem.status, refusal.value.problem.code) == (503, "grammars_unavailable")
    assert (await compiler.compile(choice_format(["a"], "f"), "one")).definition


async def test_a_process_that_does_not_start_says_nothing_of_the_definition(told: list[CompileOutcome]) -> None:
    """A machine that starts no process for a while has not judged anybody's schema."""
    compiler = FormatCompiler(lambda how, seconds: told.append(how))
    whole, compiler._lane.process = compiler._lane.process, HelperProcess("baton_gateway.no_such_module", b"?")
    with pytest.raises(RefusedError) as refusal:
        await compiler.compile(choice_format(["a"], "f"), "one")
    assert (refusal.value.problem.status, refusal.value.problem.code) == (503, "grammars_unavailable")
    compiler._lane.process = whole
    assert (await compiler.compile(choice_format(["a"], "f"), "one")).definition
    await compiler.stop()
    assert told == [CompileOutcome.NEW]


async def test_a_client_that_hangs_up_leaves_the_process_and_no_answer_behind(compiler: FormatCompiler) -> None:
    await compiler.start()
    pid = compiler._lane.process.pid
    for delay_s in (0.0, 0.001, 0.004):
        asked = asyncio.create_task(compiler.compile(choice_format([f"theirs {delay_s}"], "f"), "one"))
        await asyncio.sleep(delay_s)
        asked.cancel()
        await asyncio.wait([asked])
        assert "mine" in (await compiler.compile(choice_format([f"mine {delay_s}"], "f"), "other")).definition
    assert compiler._lane.process.pid == pid


async def test_schemas_stand_in_a_composed_grammar_and_each_has_its_field(compiler: FormatCompiler) -> None:
    good = named_schema({"type": "object"}, "tools[0].function.parameters", rule="a")
    grammar = await compiler.compile(composed_format('start: "<" a ">"', [good], "tools"), "one")
    assert "%json" in grammar.definition
    bad = named_schema({"properties": {"x": {"if": {}}}}, "tools[1].function.parameters", rule="b")
    with pytest.raises(RefusedError) as refusal:
        await compiler.compile(composed_format("start: a | b", [good, bad], "tools"), "one")
    assert refusal.value.problem.param == "tools[1].function.parameters"
    assert "'/properties/x/if'" in refusal.value.problem.message


async def test_a_plain_schema_is_answered_before_it_is_judged(
    compiler: FormatCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging, judged = asyncio.Event(), asyncio.Event()
    hear = compiler._lane.process.read_answer

    async def held(within_s: float) -> bytes | NoAnswer:
        judging.set()
        await judged.wait()
        return await hear(within_s)

    monkeypatch.setattr(compiler._lane.process, "read_answer", held)
    shape = json_format({"type": "object", "properties": {"a": {"type": "integer"}}}, "f")
    grammar = await compiler.compile(shape, "one")
    await judging.wait()
    assert await compiler.compile(shape, "other") == grammar
    behind = asyncio.create_task(compiler.compile(choice_format(["a"], "f"), "one"))
    judged.set()
    assert "a" in (await behind).definition
    assert await compiler.compile(shape, "other") == grammar


@pytest.mark.parametrize("answer", [NoAnswer.ENDED, b'{"grammar":null,"message":"no","code":"no"}'])
async def test_an_early_answer_that_the_compiler_refuses_is_taken_back_and_counted(
    compiler: FormatCompiler, told: list[CompileOutcome], monkeypatch: pytest.MonkeyPatch, answer: bytes | NoAnswer
) -> None:
    """Also where judging it ends the process."""

    async def refusing(within_s: float) -> bytes | NoAnswer:
        await compiler._lane.process.kill()
        return answer

    monkeypatch.setattr(compiler._lane.process, "read_answer", refusing)
    shape = json_format({"type": "object"}, "f")
    assert (await compiler.compile(shape, "one")).definition
    assert (await compiler.compile(choice_format(["a"], "f"), "one")).definition
    with pytest.raises(RefusedError):
        await compiler.compile(shape, "one")
    assert told == [CompileOutcome.NEW, CompileOutcome.WITHDRAWN, CompileOutcome.NEW, CompileOutcome.REFUSED]
