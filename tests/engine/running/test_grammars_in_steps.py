"""Answers that follow grammars through real steps: batched, one step ahead, continued elsewhere, preempted, failing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jsonschema
import msgspec
import pytest

from baton_engine.grammars.answer_matcher import CompiledGrammar
from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.events import SequenceSpec
from baton_testing.engine.grammars import (
    END,
    VOCAB,
    masking,
    of_regex,
    of_schema,
    sampling_of,
    token_bytes,
    vocabulary,
)
from baton_testing.engine.model_steps import RunnerSteps, chunk, opened
from baton_testing.engine.random_grammars import random_schema
from baton_testing.engine.structured_engine import (
    StructuredEngine,
    loaded,
    structured_engine,
    structured_spec,
)
from baton_testing.engine.structured_workload import CLOSE, alone, mixed
from baton_testing.engine.tiny_llama import chat_ids
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Grammar, Reason, SamplingParams, Thought

PLAIN = SamplingParams(max_tokens=40, temperature=0.0, stop_token_ids=(END,))


def run(engine: StructuredEngine, specs: list[SequenceSpec]) -> dict[tuple[int, int], list[int]]:
    outputs = engine.run(*specs)
    assert engine.failures == {}
    return outputs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("late", [False, True])
def test_together_and_one_step_ahead_each_answers_what_it_answers_alone(late: bool, seed: int) -> None:
    with structured_engine(late=late, max_step_tokens=40) as engine:
        assert run(engine, mixed(seed)) == alone(seed)


def long_ones(seed: int) -> list[SequenceSpec]:
    """Answers of about sixty tokens, some after a thought."""
    chance, specs = random.Random(seed), []
    for number in range(1, 9):
        thought = chance.choice([None, Thought(end=(CLOSE,), max_tokens=chance.randint(0, 50))])
        pattern = chance.choice(["[a-z ]{50,60}", "((yes|no|maybe), ){30}"])
        sampling = sampling_of(of_regex(pattern, head=""), thought, max_tokens=70, seed=number)
        specs.append(structured_spec(number, [chance.randrange(5, VOCAB) for _ in range(30)], sampling))
    return specs


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_preempted_rows_go_on_where_they_were(late: bool, seed: int) -> None:
    expected: dict[tuple[int, int], list[int]] = {}
    for spec in long_ones(seed):
        with structured_engine() as engine:
            expected |= engine.run(spec)
    with structured_engine(late=late, blocks=16) as engine:
        assert run(engine, long_ones(seed)) == expected
        assert engine.scheduler.stats().preemptions > 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_an_answer_continued_from_any_of_its_tokens_goes_on_alike(late: bool, seed: int) -> None:
    """Migration and hand-over: the other worker knows the prompt and the ids, and no matcher's state."""
    whole = {number: ids for (number, choice), ids in alone(seed).items() if choice == 0}
    with structured_engine(late=late) as engine:
        specs = {int.from_bytes(spec.key.request, "big"): spec for spec in mixed(seed)}
        cuts = [(number, cut) for number, ids in whole.items() for cut in range(0, len(ids), 3)]
        later = [
            structured_spec(
                place + 1, specs[number].tokens, specs[number].sampling, forced=whole[number][:cut], hold=False
            )
            for place, (number, cut) in enumerate(cuts)
        ]
        outputs = run(engine, later)
    for place, (number, cut) in enumerate(cuts):
        assert outputs[place + 1, 0] == whole[number][cut:], (number, cut)


def test_a_prefill_worker_draws_each_choices_first_token_by_the_same_masks() -> None:
    with structured_engine() as engine:
        specs = mixed(2)
        held = [
            SequenceSpec(spec.key, spec.tokens, spec.prompt_tokens, spec.choices, spec.sampling, "", 1e9, True)
            for spec in specs
        ]
        for spec in held:
            engine.scheduler.submit(spec, 0.0)
            engine.scheduler.granted(spec.key, 0.0)
        outputs = run(engine, [])
        assert {place: ids[:1] for place, ids in alone(2).items()} == outputs


@pytest.mark.parametrize("late", [False, True])
def test_rows_without_a_grammar_draw_what_they_draw_on_an_engine_without_masks(late: bool) -> None:
    prompts = [list(chat_ids(question)) for question in ("What is Baton?", "Tell me about owls.")]
    plain = [RunnerSteps(loaded(), blocks_per_slot=16).generate(prompt, 40, PLAIN) for prompt in prompts]
    with structured_engine(late=late) as engine:
        specs = [structured_spec(number, prompt, PLAIN) for number, prompt in enumerate(prompts, 1)]
        bound = structured_spec(9, prompts[0], sampling_of(of_regex("(yes|no)+"), max_tokens=30))
        outputs = run(engine, [*specs, bound])
    for number, ids in enumerate(plain, 1):
        assert outputs[number, 0] == ids[: len(outputs[number, 0])]
        assert len(outputs[number, 0]) == 40 or outputs[number, 0][-1] == END


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_ended_answer_of_a_model_validates(temperature: float) -> None:
    chance, ended = random.Random(11), 0
    for round_ in range(4):
        schemas = [random_schema(chance)[0] for _ in range(16)]
        with structured_engine(late=round_ % 2 == 1) as engine:
            specs = [
                structured_spec(
                    number, chat_ids("Hi!"), sampling_of(of_schema(schema), temperature=temperature, seed=number)
                )
                for number, schema in enumerate(schemas)
            ]
            outputs = run(engine, specs)
        for number, schema in enumerate(schemas):
            ids = outputs[number, 0]
            if ids[-1] == END:
                ended += 1
                jsonschema.validate(msgspec.json.decode(b"".join(token_bytes()[token] for token in ids[:-1])), schema)
            else:
                assert len(ids) == 200
    assert ended > 20


@pytest.mark.parametrize("late", [False, True])
def test_a_grammar_that_fails_ends_its_request_and_no_other(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One never compiles; one runs out of what its matcher may use in the middle of the answer."""
    monkeypatch.setattr("baton_wire.rules.grammar_limits.MAX_LEXER_STATES", 100)
    bad = sampling_of(Grammar("{"), temperature=0.0)
    tiring = sampling_of(of_regex("(a|b)*a(a|b){18}"), max_tokens=150, min_tokens=150, temperature=100.0)
    good = sampling_of(of_regex("(yes|no)+"), max_tokens=30)
    with structured_engine(late=late) as engine:
        specs = [
            structured_spec(number, chat_ids("Hi!"), sampling, choices=choices)
            for number, (sampling, choices) in enumerate([(bad, 2), (tiring, 2), (good, 1), (PLAIN, 1)])
        ]
        outputs = engine.run(*specs)
    assert {number: failed.reason for number, failed in engine.failures.items()} == dict.fromkeys(
        (0, 1), Reason.GRAMMAR
    )
    assert engine.failures[0].detail == "grammar: the matcher does not accept it"
    assert engine.failures[1].detail.startswith("the matcher gave up: lexer error: too many states")
    assert (0, 0) not in outputs
    assert 1 < len(outputs[1, 0]) < 150
    with structured_engine() as engine:
        assert engine.run(*specs[2:]) == {place: ids for place, ids in outputs.items() if place[0] > 1}


def test_a_grammar_needs_a_stop_id_to_end_with() -> None:
    with structured_engine() as engine:
        engine.run(structured_spec(1, [7], sampling_of(of_regex("a"), stop_token_ids=())))
    assert engine.failures[1].reason is Reason.BAD_REQUEST
    assert "stop_token_ids" in engine.failures[1].detail


def test_a_step_ahead_waits_for_its_masks_and_nothing_is_launched_over_it() -> None:
    with masking(4) as masks:
        steps = RunnerSteps(loaded(), masks=masks)
        runner, bound = steps.runner, sampling_of(of_regex("[ab]{9}"), temperature=0.0)
        prompt = list(chat_ids("Hi!"))
        runner.launch(steps.plan([opened(0, bound, prompt=prompt)], [chunk(0, prompt, sample=[0])]))
        assert len(steps.seen) == 1
        runner.launch(steps.plan(decode=[0]))
        assert len(steps.seen) == 1, "its draw needs the first one's id"
        with pytest.raises(RuntimeError, match="waits for a result"):
            runner.launch(steps.plan(decode=[0]))
        first = runner.collect()
        assert len(steps.seen) == 2
        second = runner.collect()
        text = [token_bytes()[result.tokens[0].ids[0]] for result in (first, second)]
        assert set(b"".join(text)) <= set(b"ab")


def test_rows_leave_nothing_behind() -> None:
    with structured_engine() as engine:
        engine.run(*mixed(3))
        masks = engine.runner._masks
        assert isinstance(masks, RowMasks)
        assert masks._rows == {}
        assert isinstance(engine.stepper, Stepper)


HELD_S = 60.0


class HeldCompiler(GrammarCompiler):
    """Compiles one definition only when it is told to."""

    def __init__(self, held: Grammar) -> None:
        self._held, self.released = held.definition, threading.Event()
        super().__init__(vocabulary)

    def _compile(self, definition: str) -> CompiledGrammar:
        assert definition != self._held or self.released.wait(HELD_S)
        return super()._compile(definition)


SLOW = of_regex("(red|green)+")
NUMBERS = of_regex("[0-9]{30}")


@contextmanager
def held_engine(late: bool, max_step_tokens: int = 256) -> Iterator[tuple[StructuredEngine, HeldCompiler]]:
    compiler = HeldCompiler(SLOW)
    try:
        with structured_engine(late=late, compiler=compiler, max_step_tokens=max_step_tokens) as engine:
            yield engine, compiler
    finally:
        compiler.released.set()
        compiler.close()


def turned(engine: StructuredEngine, ended: set[int]) -> None:
    """Turns until these have ended, whose grammars are compiled by threads, and some more; a look behind each."""
    until = time.monotonic() + HELD_S / 2
    while not ended <= engine.ended and time.monotonic() < until:
        engine.stepper.turn(0.0)
        engine.look()
    for _ in range(50):
        engine.stepper.turn(0.0)
        engine.look()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_nobody_waits_for_a_grammar_that_is_being_compiled(late: bool, begun: bool) -> None:
    """Neither running rows, nor later prompts, nor other grammars wait: all end before it has drawn anything."""
    forced = tuple(token_bytes().index(bytes([byte])) for byte in b"red" if begun)
    choices = 1 if begun else 2
    slow = structured_spec(1, chat_ids("Hi!"), sampling_of(SLOW, max_tokens=30), choices=choices, forced=forced)
    others = [
        structured_spec(2, chat_ids("Hello!"), PLAIN),
        structured_spec(3, [7], sampling_of(NUMBERS, max_tokens=40)),
    ]
    with held_engine(late, max_step_tokens=24) as (engine, compiler):
        for spec in (others[0], slow, others[1]):
            engine.scheduler.submit(spec, 0.0)
        turned(engine, {2, 3})
        assert {number for number, _ in engine.outputs} == {2, 3}
        assert engine.ended == {2, 3}
        compiler.released.set()
        outputs = run(engine, [])
    with structured_engine() as undisturbed:
        assert outputs == run(undisturbed, [*others, slow])


@pytest.mark.parametrize("late", [False, True])
def test_a_landed_answer_waits_for_its_grammar_alone(late: bool) -> None:
    slow = structured_spec(1, chat_ids("Hi!"), sampling_of(SLOW, max_tokens=30))
    with structured_engine() as undisturbed:
        whole = undisturbed.run(slow)[1, 0]
    plain = structured_spec(2, chat_ids("Hello!"), PLAIN)
    with held_engine(late) as (engine, compiler):
        engine.scheduler.reserve(slow, 0.0)
        engine.scheduler.landed(slow.key, (FirstToken(0, whole[0], None, None),), 0.0)
        engine.scheduler.submit(plain, 0.0)
        turned(engine, {2})
        assert engine.ended == {2}
        assert engine.outputs[1, 0] == whole[:1]
        compiler.released.set()
        assert len(run(engine, [])[1, 0]) > 1


def test_a_grammar_that_takes_too_long_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_engine.grammars.grammar_compiler.READY_S", 0.2)
    plain = structured_spec(2, chat_ids("Hello!"), PLAIN)
    with held_engine(late=False) as (engine, _):
        engine.run(structured_spec(1, chat_ids("Hi!"), sampling_of(SLOW)), plain)
        assert engine.failures[1].reason is Reason.GRAMMAR
        assert engine.failures[1].detail == "the grammar was not compiled within 0.2 s"
        assert engine.ended == {2}
