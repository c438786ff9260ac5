"""Scripted answers through real processes: `make campaign RUN="scripted_calls --answers 40"`.

For each format: answers written by hand and drawn ones come through gateway, prefill, hand-over and decode, whole and
streamed, and must be what the format's reader makes of the same text alone. While they come, workers of both roles are
killed, and decode workers are terminated. Marks are special tokens or spelled in letters. Exits with 1 at the first
difference.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_gateway.answers.output_parts import WholeAnswer
from baton_testing.engine.scripted_model import WORKER_FLAGS, write_scripted_model
from baton_testing.gateway.answer_transcripts import FAMILIES
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.scripted_answers import Asked, expected_answer, transcripts

AT_ONCE = 4
HARMS = (("decode", signal.SIGKILL), ("prefill", signal.SIGKILL), ("decode", signal.SIGTERM))


class Harm(threading.Thread):
    """Kills a worker or tells it to leave, one after another, and replaces it."""

    def __init__(self, deployment: Deployment, pause_s: float, dice: random.Random) -> None:
        super().__init__()
        self._deployment = deployment
        self._pause_s = pause_s
        self._dice = dice
        self._is_over = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._is_over.wait(self._pause_s):
            role, harm = HARMS[self.count % len(HARMS)]
            victim = self._dice.choice(self._deployment.of_role(role))
            victim.child.send(harm)
            if harm is signal.SIGTERM:
                victim.child.wait(120)
            self._deployment.replace(victim)
            self.count += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def ask(client: openai.OpenAI, text: str, as_tokens: bool) -> tuple[WholeAnswer, WholeAnswer]:
    asked = Asked(client, text, as_tokens=as_tokens)
    return asked.whole(), asked.streamed()


def run_family(
    deployment: Deployment, family: str, with_marks: bool, answers: int, seed: int, pause_s: float
) -> dict[str, Cell]:
    """Raises AssertionError at the first difference."""
    began = time.monotonic()
    thoughts = "harmony" if family == "harmony" else "think"
    flags = (f"--tool-format={family}", f"--reasoning-format={thoughts}")
    url = deployment.start_gateway(f"gateway-{family}-{with_marks}", flags)
    texts = transcripts(family, answers, seed)
    harm = Harm(deployment, pause_s, random.Random(seed))
    harm.start()
    try:
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=180) as client,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            for text, (whole, streamed) in zip(
                texts, pool.map(lambda text: ask(client, text, with_marks), texts), strict=True
            ):
                expected = expected_answer(family, text, with_marks)
                assert whole == expected, (text, whole, expected)
                assert streamed == expected, (text, streamed, expected)
    finally:
        harm.stop()
    return {
        "format": family,
        "marks": "tokens" if with_marks else "letters",
        "answers": 2 * len(texts),
        "killed or left": harm.count,
        "differences": 0,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.scripted_calls", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--answers", type=int, default=20, help="drawn answers for each format")
    parser.add_argument("--pause-s", type=float, default=2.0, help="between two workers that die or leave")
    parser.add_argument("--formats", nargs="*", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows: list[dict[str, Cell]] = []
    for with_marks in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            model = write_scripted_model(Path(folder) / "model", with_marks=with_marks)
            shape = Shape(prefill=2, decode=2, model=model, served_name="scripted", worker_flags=WORKER_FLAGS)
            with Deployment(Path(folder) / "deployment", shape) as deployment:
                for family in arguments.formats:
                    rows.append(
                        run_family(deployment, family, with_marks, arguments.answers, arguments.seed, arguments.pause_s)
                    )
                    print(rows[-1], flush=True)
    notes = ["Scripted answers through real processes while workers die; a difference ends the campaign."]
    publish("campaign_scripted_calls", this_machine(), notes, tuple(rows[0]), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
