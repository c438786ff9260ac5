"""Answers of schemas, judged by `jsonschema`: every ended one must be valid, and the same when it is continued.

    python -m bench structured_validity [--schemas 3000] [--suite jsonschema-4.26.0.tar.gz]

Schemas made from a seed and those of the JSON Schema Test Suite go through the gateway's check. Whole engines in this
process answer: `examples/tiny-llama` and a model of random weights, at temperature 0 and 1. A part of the answers is
then continued elsewhere from a random token, as after a lost decode worker, a retarget or a drain, in a pool that is so
small that sequences are preempted: the ids must be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, getcontext
from pathlib import Path
from typing import Any

import jsonschema
import torch
from bench.machine import this_machine
from bench.results import Cell, publish
from bench.structured.json_schema_suite import suite_cases
from bench.structured.made_schemas import made_schema

from baton_engine.model.loading import LoadedModel, load_model
from baton_gateway.errors import RefusedError
from baton_gateway.shapes.answer_shape import json_shape
from baton_gateway.shapes.definition import definition_of
from baton_testing.engine.grammars import END, VOCAB, sampling_of, token_bytes
from baton_testing.engine.models import write_random_model
from baton_testing.engine.structured_engine import loaded, structured_engine, structured_spec
from baton_testing.engine.tiny_llama import chat_ids
from baton_wire.messages.values import Grammar, SamplingParams

PROMPT = chat_ids("Tell me about owls.")
MAX_TOKENS = 64
AT_ONCE = 64
MAX_EXPONENT = 5_000
SMALL_POOL = 24
"""Blocks, for rows that need more together."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A schema and what workers get for it."""

    schema: Any
    grammar: Grammar


def schemas(wanted: int, seed: int, package: Path | None) -> Iterator[Any]:
    chance = random.Random(seed)
    yield from (case.schema for case in suite_cases(package))
    for _ in range(wanted):
        yield made_schema(chance)


def judged(answer: Sequence[int], schema: Any) -> str:
    """`valid`, `cut` for what was ended by its length, or what is wrong."""
    if answer[-1] != END:
        return "cut"
    text = b"".join(token_bytes()[token] for token in answer[:-1]).decode()
    exact = json.loads(json.dumps(schema), parse_float=_exact)
    validator = jsonschema.validators.validator_for(exact, jsonschema.Draft202012Validator)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    problem = next(validator(exact, format_checker=checker).iter_errors(json.loads(text, parse_float=_exact)), None)
    return "valid" if problem is None else f"{text!r}: {problem.message[:200]}"


def _exact(number: str) -> Decimal | float:
    """Exponents that nobody can count with become infinities, as for any other reader."""
    try:
        exact = Decimal(number)
    except InvalidOperation:
        return float(number)
    return exact if abs(exact.adjusted()) < MAX_EXPONENT else float(number)


def answers(
    model: LoadedModel, asked: Sequence[tuple[Followed, SamplingParams, Sequence[int]]], blocks: int
) -> list[list[int] | None]:
    """Whole answers, forced beginnings included; None for what the engine gave up."""
    found: list[list[int] | None] = []
    for start in range(0, len(asked), AT_ONCE):
        some = asked[start : start + AT_ONCE]
        with structured_engine(blocks=blocks, model=model) as engine:
            specs = [
                structured_spec(n, PROMPT, sampling, forced=forced) for n, (_, sampling, forced) in enumerate(some, 1)
            ]
            got = engine.run(*specs)
            for number, (_, _, forced) in enumerate(some, 1):
                found.append(None if number in engine.failures else [*forced, *got.get((number, 0), [])])
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="structured_validity", description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=3_300, help="made from the seed, beside the Test Suite's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--continued", type=int, default=600, help="answers that are continued elsewhere")
    parser.add_argument("--suite", type=Path, help="the source package of jsonschema; else it is fetched")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    getcontext().prec = MAX_EXPONENT  # a remainder has as many digits as the quotient
    followed: list[Followed] = []
    refused = 0
    for schema in schemas(options.schemas, options.seed, options.suite):
        try:
            followed.append(Followed(schema, Grammar(definition_of(json_shape(schema, "schema", is_strict=True)))))
        except RefusedError:
            refused += 1
    notes = [
        f"{len(followed)} schemas followed, {refused} refused; seed {options.seed}",
        f"at most {MAX_TOKENS} tokens an answer; continued in a pool of {SMALL_POOL} blocks",
    ]
    rows: list[dict[str, Cell]] = []
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), "llama-gqa", vocab_size=VOCAB)
        models = {"tiny-llama": loaded(), "random": load_model(Path(folder), torch.float32, torch.device("cpu"))}
        for name, model in models.items():
            for temperature in (0.0, 1.0):
                row = measure(model, followed, temperature, options.continued // 4, options.seed)
                wrong += row["invalid"] + row["continued otherwise"]
                rows.append({"model": name, "temperature": temperature, **row})
                print(rows[-1], flush=True)
    publish("structured_validity", this_machine(), notes, list(rows[0]), rows)
    return 1 if wrong else 0


def measure(
    model: LoadedModel, followed: list[Followed], temperature: float, continued: int, seed: int
) -> dict[str, int]:
    began = time.monotonic()
    chance = random.Random(seed)
    asked = [
        (each, sampling_of(each.grammar, temperature=temperature, seed=number, max_tokens=MAX_TOKENS), ())
        for number, each in enumerate(followed)
    ]
    whole = answers(model, asked, blocks=1_000)
    counts: Counter[str] = Counter()
    for each, answer in zip(followed, whole, strict=True):
        verdict = "gave up" if answer is None else judged(answer, each.schema)
        if verdict not in ("valid", "cut", "gave up"):
            print(f"INVALID {json.dumps(each.schema)[:600]}\n  {verdict}", flush=True)
            verdict = "invalid"
        counts[verdict] += 1
    cuts = []
    for place in chance.sample(range(len(asked)), min(continued, len(asked))):
        answer = whole[place]
        if answer is not None and len(answer) > 1:
            each, sampling, _ = asked[place]
            cuts.append((place, (each, sampling, tuple(answer[: chance.randrange(1, len(answer))]))))
    again = answers(model, [cut for _, cut in cuts], blocks=SMALL_POOL)
    differ = sum(answer != whole[place] for (place, _), answer in zip(cuts, again, strict=True))
    told = {name: counts[name] for name in ("valid", "invalid", "cut", "gave up")}
    seconds = {"seconds": round(time.monotonic() - began)}
    return told | {"continued": len(cuts), "continued otherwise": differ} | seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
