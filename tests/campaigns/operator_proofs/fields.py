"""Every field of an LLMDeployment mutated, and random sequences of edits, against fresh creates."""

from __future__ import annotations

import logging
import random
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.kube.mutations import Bench, base, mutations, names_the_path, paths, refusal, sequence, slipped
from baton_testing.kube.store import Json
from campaigns.operator_proofs.tally import Tally

CHUNK = 50
"""Specs that slip past an older definition, one after the other on one deployment."""


def fields(sequences: int, budget_s: float, resume: Path | None) -> int:
    """All mutations, then as many sequences as asked for or as the budget allows; returns how many went wrong."""
    logging.disable(logging.CRITICAL)
    machine, tally = this_machine(), Tally("fields", resume, budget_s)
    refusals = [(mutation, refusal(mutation)) for mutation in mutations()]
    refused = [mutation for mutation, text in refusals if text is not None]
    good = [mutation for mutation, text in refusals if text is None]
    unnamed = [mutation for mutation, text in refusals if text and not names_the_path(mutation, text)]
    chunks = [refused[first : first + CHUNK] for first in range(0, len(refused), CHUNK)]
    bench = Bench()

    def edits(name: str, bodies: list[tuple[float, Json]]) -> list[str]:
        problem = bench.complaint(bodies)
        return [] if problem is None else [f"{name}: {problem}"]

    for number in tally.numbers(len(chunks) + len(good) + sequences):
        place = number - len(chunks)
        try:
            if place < 0:
                kind, count, problems = "slipped", len(chunks[number]), slipped(chunks[number])
            elif place < len(good):
                kind, count = "edits", 1
                problems = edits(str(good[place]), [(30.0, good[place].on(base()))])
            else:
                seed = place - len(good)
                kind, count, problems = "sequences", 1, edits(f"sequence {seed}", sequence(random.Random(seed), good))
        except Exception as error:  # noqa: BLE001 - the outermost loop: what the operator let out is a result
            problems = [f"run {number}: {type(error).__name__}: {error}"]
        tally.counts[kind] += count
        for problem in problems:
            tally.add(problem)
    rows: list[dict[str, Cell]] = [
        {"what": "leaf fields", "runs": len(paths()), "of": len(paths())},
        {"what": "values", "runs": len(refusals), "of": len(refusals)},
        {"what": "refused by path", "runs": len(refused) - len(unnamed), "of": len(refused)},
        {
            "what": "set as a condition if they slip, old spec serving",
            "runs": tally.counts["slipped"],
            "of": len(refused),
        },
        {"what": "accepted edits against a fresh create", "runs": tally.counts["edits"], "of": len(good)},
        {"what": "sequences against a fresh create", "runs": tally.counts["sequences"], "of": sequences},
    ]
    wrong = tally.counts["wrong"] + len(unnamed)
    notes = [
        f"campaign: operator_proofs fields --sequences {sequences}, in {tally.slices} slices",
        f"{wrong} went wrong; {tally.cpu_s:.0f} s of CPU",
        *(f"no path: {mutation}" for mutation in unnamed[:10]),
        *tally.wrong[:20],
    ]
    publish("operator-fields", machine, notes, ["what", "runs", "of"], rows)
    return wrong
