"""Answers of schemas, judged by `jsonschema`: every ended one must be valid, and the same when it is continued.

    python -m bench structured_validity [--schemas 3000] [--suite jsonschema-4.26.0.tar.gz]
    python -m bench structured_validity --models random --temperatures 1 --part 2/8 --journal FILE

Schemas made from a seed and those of the JSON Schema Test Suite go through the gateway's check. Whole engines in this
process answer: `examples/tiny-llama` and a model of random weights, at temperature 0 and 1. A part of the answers is
then continued elsewhere from a random token, as after a lost decode worker, a retarget or a drain, in a pool that is so
small that sequences are preempted: the ids must be the same. In parts, the table covers all that the journal has.
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
from bench.results import publish
from bench.structured.json_schema_suite import suite_cases
from bench.structured.made_schemas import made_schema

from baton_engine.model.loading import LoadedModel, load_model
from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_gateway.structured_outputs.output_format import json_format
from baton_testing.engine.grammars import END, VOCAB, sampling_of, token_bytes
from baton_testing.engine.models import write_random_model
from baton_testing.engine.structured_engine import loaded, structured_engine, structured_spec
from baton_testing.engine.tiny_llama import chat_ids
from baton_wire.messages.values import Grammar, SamplingParams

PROMPT = chat_ids("Tell me about owls.")
MODELS = ("tiny-llama", "random")
COUNTS = ("valid", "invalid", "cut", "gave up", "continued", "continued otherwise", "seconds")
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


def judge_answer(answer: Sequence[int], schema: Any) -> str:
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
    """Exponents beyond arithmetic become infinities, as for any other reader."""
    try:
        exact = Decimal(number)
    except InvalidOperation:
        return float(number)
    return exact if abs(exact.adjusted()) < MAX_EXPONENT else float(number)


def answers(
    model: LoadedModel, asked: Sequence[tuple[Followed, SamplingParams, Sequence[int]]], blocks: int
) -> list[list[int] | None]:
    """Whole answers, forced beginnings included; None for what the engine gave up."""
    whole_answers: list[list[int] | None] = []
    for start in range(0, len(asked), AT_ONCE):
        some = asked[start : start + AT_ONCE]
        with structured_engine(blocks=blocks, model=model) as engine:
            specs = [
                structured_spec(n, PROMPT, sampling, forced=forced) for n, (_, sampling, forced) in enumerate(some, 1)
            ]
            got = engine.run(*specs)
            for number, (_, _, forced) in enumerate(some, 1):
                whole_answers.append(None if number in engine.failures else [*forced, *got.get((number, 0), [])])
    return whole_answers


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="structured_validity", description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=3_300, help="made from the seed, besides the Test Suite's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--continued", type=int, default=600, help="answers that are continued elsewhere")
    parser.add_argument("--suite", type=Path, help="the source package of jsonschema; else it is fetched")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--temperatures", nargs="+", type=float, default=(0.0, 1.0))
    parser.add_argument("--part", type=_part, default=(1, 1), help="K/N: every N-th schema, from the K-th on")
    parser.add_argument("--journal", type=Path, help="of parts; appended to (default: a new one)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    getcontext().prec = MAX_EXPONENT  # a remainder has as many digits as the quotient
    followed: list[Followed] = []
    refused = 0
    for schema in schemas(options.schemas, options.seed, options.suite):
        try:
            shape = json_format(schema, "schema", is_strict=True)
            followed.append(Followed(schema, shape.grammar(build_grammar(shape))))
        except RefusedError:
            refused += 1
    notes = [
        f"{len(followed)} schemas followed, {refused} refused; seed {options.seed}",
        f"at most {MAX_TOKENS} tokens an answer; continued in a pool of {SMALL_POOL} blocks",
    ]
    first, step = options.part
    part = list(enumerate(followed))[first - 1 :: step]
    with tempfile.TemporaryDirectory() as folder:
        journal = options.journal or Path(folder) / "journal.jsonl"
        for name in options.models:
            model = _model(name, Path(folder) / name)
            for temperature in options.temperatures:
                row = measure(model, part, temperature, options.continued // (4 * step), options.seed)
                with journal.open("a", encoding="utf-8") as parts:
                    parts.write(json.dumps({"model": name, "temperature": temperature, **row}) + "\n")
                print(name, temperature, row, flush=True)
        rows = summary([json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()])
    publish("structured_validity", this_machine(), notes, list(rows[0]), rows)
    return 1 if any(row["invalid"] or row["continued otherwise"] for row in rows) else 0


def summary(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each model and temperature."""
    kinds = dict.fromkeys((part["model"], part["temperature"]) for part in parts)
    rows: list[dict[str, Any]] = []
    for model, temperature in kinds:
        same = [part for part in parts if (part["model"], part["temperature"]) == (model, temperature)]
        counts = {name: sum(part[name] for part in same) for name in COUNTS}
        rows.append({"model": model, "temperature": temperature, **counts})
    return rows


def _model(name: str, folder: Path) -> LoadedModel:
    if name == "tiny-llama":
        return loaded()
    folder.mkdir()
    write_random_model(folder, "llama-gqa", vocab_size=VOCAB)
    return load_model(folder, torch.float32, torch.device("cpu"))


def _part(text: str) -> tuple[int, int]:
    first, _, step = text.partition("/")
    if not (first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N")
    return int(first), int(step)


def measure(
    model: LoadedModel, part: list[tuple[int, Followed]], temperature: float, continued: int, seed: int
) -> dict[str, int]:
    """`part`: schemas with their places among all, which are their seeds."""
    began = time.monotonic()
    chance = random.Random(seed)
    asked = [
        (followed, sampling_of(followed.grammar, temperature=temperature, seed=number, max_tokens=MAX_TOKENS), ())
        for number, followed in part
    ]
    whole = answers(model, asked, blocks=1_000)
    counts: Counter[str] = Counter()
    for (_, followed), answer in zip(part, whole, strict=True):
        verdict = "gave up" if answer is None else judge_answer(answer, followed.schema)
        if verdict not in ("valid", "cut", "gave up"):
            print(f"INVALID {json.dumps(followed.schema)[:600]}\n  {verdict}", flush=True)
            verdict = "invalid"
        counts[verdict] += 1
    cuts = []
    for place in chance.sample(range(len(asked)), min(continued, len(asked))):
        answer = whole[place]
        if answer is not None and len(answer) > 1:
            followed, sampling, _ = asked[place]
            cuts.append((place, (followed, sampling, tuple(answer[: chance.randrange(1, len(answer))]))))
    again = answers(model, [cut for _, cut in cuts], blocks=SMALL_POOL)
    differ = sum(answer != whole[place] for (place, _), answer in zip(cuts, again, strict=True))
    figures = (*(counts[name] for name in COUNTS[:4]), len(cuts), differ, round(time.monotonic() - began))
    return dict(zip(COUNTS, figures, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
