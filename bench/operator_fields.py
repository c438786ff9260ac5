"""Every field of an LLMDeployment mutated, and random sequences of edits, against fresh creates."""

from __future__ import annotations

import logging
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from baton_testing.kube_mutations import Bench, base, mutations, names_the_path, paths, refusal, sequence, slipped
from baton_testing.kube_store import Json
from bench.machine import this_machine
from bench.results import Cell, publish

CHUNK = 50


def fields(sequences: int, budget_s: float) -> int:
    """All mutations, then as many sequences as asked for or as the budget allows; returns how many went wrong."""
    logging.disable(logging.CRITICAL)
    machine, until, began = this_machine(), time.monotonic() + budget_s, time.process_time()
    judged = [(mutation, refusal(mutation)) for mutation in mutations()]
    refused = [mutation for mutation, text in judged if text is not None]
    good = [mutation for mutation, text in judged if text is None]
    wrong = [f"no path: {mutation}: {text}" for mutation, text in judged if text and not names_the_path(mutation, text)]
    for first in range(0, len(refused), CHUNK):
        wrong += slipped(refused[first : first + CHUNK])
    done = {"edits": 0, "sequences": 0}
    plans: list[tuple[str, str, list[tuple[float, Json]]]] = [
        ("edits", str(mutation), [(30.0, mutation.on(base()))]) for mutation in good
    ]
    plans += [("sequences", f"sequence {seed}", sequence(random.Random(seed), good)) for seed in range(sequences)]
    bench = Bench()
    for kind, name, bodies in plans:
        if time.monotonic() > until:
            break
        try:
            found = bench.complaint(bodies)
        except Exception as error:  # noqa: BLE001 - the outermost loop: what the operator let out is a result
            found = f"{type(error).__name__}: {error}"
        done[kind] += 1
        if found is not None:
            wrong.append(f"{name}: {found}")
            print(wrong[-1], flush=True)
    rows: list[dict[str, Cell]] = [
        {"what": "leaf fields", "runs": len(paths()), "of": len(paths())},
        {"what": "values", "runs": len(judged), "of": len(judged)},
        {
            "what": "refused by path, reported by path if they slip",
            "runs": len(refused),
            "of": len(refused),
        },
        {"what": "accepted edits against a fresh create", "runs": done["edits"], "of": len(good)},
        {"what": "sequences against a fresh create", "runs": done["sequences"], "of": sequences},
    ]
    notes = [
        f"command: python -m bench.operator fields --sequences {sequences} --budget-s {budget_s:.0f}",
        f"{len(wrong)} went wrong; {time.process_time() - began:.0f} s of CPU",
        *wrong[:20],
    ]
    publish("operator-fields", machine, notes, ["what", "runs", "of"], rows)
    return len(wrong)
