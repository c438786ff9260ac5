"""Random mixes: does `auto` keep as much as the better of `always` and `never`, as predicted?

    python -m bench random_mixes --mixes 40

Each mix is drawn from its number: the mean and the scatter of prompts and of answers, the TPOT target, and the load as
a share of what two H200 could do at most by arithmetic. Then the three modes are played as by `goodput_predicted`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bench.machine import this_machine
from bench.results import Cell, publish
from bench.serving.goodput_predicted import predict_point
from bench.serving.mixes import Point
from bench.serving.predicted_worker import STEP_TIMES, StepTimes

from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.workload import Workload, workload_of

MODES: Final = ("auto", "always", "never")
PROMPTS: Final = (150, 8_000)
ANSWERS: Final = (10, 1_000)
"""Means of tokens, drawn evenly on a logarithmic scale."""
SIGMAS: Final = (0.1, 1.2)
"""Standard deviations of the lengths' logarithms: nearly equal lengths, and a heavy tail."""
TPOTS_MS: Final = (10, 15, 25, 40)
SHARES: Final = (0.6, 0.75, 0.9, 1.0)
LENGTHS: Final = 4_000
MAX_SEQUENCES: Final = 256
STEP_TOKENS: Final = 8_192
FULL: Final = 0.9
"""The share of the TPOT target that a step takes at most where capacity is estimated."""
COLUMNS: Final = (
    *("mix", "prompt", "its sigma", "answer", "sigma", "TPOT ms", "share", "req/s"),
    *(*MODES, "auto less the better", "local %", "kept %"),
)


@dataclass(frozen=True, slots=True)
class RandomMix:
    """Lengths are log-normal; rates are requests a second."""

    number: int
    prompt_tokens: float
    prompt_sigma: float
    answer_tokens: float
    answer_sigma: float
    tpot_ms: float
    share: float

    @classmethod
    def drawn(cls, number: int) -> RandomMix:
        draw = np.random.default_rng(number)

        def mean(least: float, most: float) -> float:
            return float(np.exp(draw.uniform(np.log(least), np.log(most))))

        prompt, prompt_sigma = mean(*PROMPTS), float(draw.uniform(*SIGMAS))
        answer, answer_sigma = mean(*ANSWERS), float(draw.uniform(*SIGMAS))
        tpot_ms, share = float(draw.choice(TPOTS_MS)), float(draw.choice(SHARES))
        return cls(number, prompt, prompt_sigma, answer, answer_sigma, tpot_ms, share)

    def workload(self, seconds: float, times: StepTimes) -> tuple[Workload, float]:
        """Poisson arrivals over `seconds`, and their rate."""
        draw = np.random.default_rng(1_000 + self.number)
        prompts = _lengths(draw, self.prompt_tokens, self.prompt_sigma, 8, 16_000)
        answers = _lengths(draw, self.answer_tokens, self.answer_sigma, 2, 3_000)
        rate = self.share * most_requests(prompts, answers, self.tpot_ms / 1e3, times)
        arrivals = np.cumsum(draw.exponential(1 / rate, int(2 * rate * seconds) + 20))
        arrivals = arrivals[arrivals < seconds]
        chosen = draw.integers(0, LENGTHS, len(arrivals))
        shapes = [RequestShape(int(prompts[place]), int(answers[place])) for place in chosen]
        return workload_of(arrivals, shapes, f"mix {self.number}"), rate


Ints = np.ndarray[Any, np.dtype[np.int64]]


def _lengths(draw: np.random.Generator, mean: float, sigma: float, least: int, most: int) -> Ints:
    drawn_lengths = draw.lognormal(np.log(mean) - sigma * sigma / 2, sigma, LENGTHS)
    return np.clip(drawn_lengths, least, most).astype(np.int64)


def most_requests(prompts: Ints, answers: Ints, tpot_s: float, times: StepTimes) -> float:
    """A second, by two GPUs that are never idle: prompts one by one, answers in steps as full as the target allows."""
    pairs = float((prompts.astype(float) ** 2).mean()) / 2
    prompt_s = float(prompts.mean()) * times.over_knee_s + pairs * times.pair_s
    context = float(prompts.mean() + answers.mean() / 2)
    rows = (FULL * tpot_s - times.weights_s) / (times.row_s + context * times.kv_token_s)
    return 2 / (prompt_s + float(answers.mean()) * FULL * tpot_s / min(MAX_SEQUENCES, rows))


def play_mix(mix: RandomMix, seconds: float, times: StepTimes) -> dict[str, Cell]:
    """The mix's row: % of requests within both targets by mode."""
    workload, rate = mix.workload(seconds, times)
    row: dict[str, Cell] = {
        "mix": mix.number,
        "prompt": round(mix.prompt_tokens),
        "its sigma": round(mix.prompt_sigma, 2),
        "answer": round(mix.answer_tokens),
        "sigma": round(mix.answer_sigma, 2),
        "TPOT ms": round(mix.tpot_ms),
        "share": mix.share,
        "req/s": round(rate, 2),
    }
    within_targets: dict[str, float] = {}
    for mode in MODES:
        prediction = predict_point(Point("conv", mode, mix.tpot_ms, rate), workload, MAX_SEQUENCES, STEP_TOKENS, times)
        row[mode] = within_targets[mode] = float(prediction["% within"] or 0)
        if mode == "auto":
            row |= {name: prediction[name] for name in ("local %", "kept %")}
    row["auto less the better"] = round(
        within_targets["auto"] - max(within_targets["always"], within_targets["never"]), 1
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", type=int, default=40, help="how many (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals (default %(default)s)")
    options = parser.parse_args()
    rows = []
    for number in range(options.first, options.first + options.mixes):
        rows.append(play_mix(RandomMix.drawn(number), options.seconds, STEP_TIMES["h200"]))
        print(json.dumps(rows[-1]), flush=True)
    differences = [float(row["auto less the better"] or 0) for row in rows]
    notes = [
        f"{options.seconds:g} s of Poisson arrivals a mix, times of two H200, one gateway; % within both targets",
        f"auto is more than 3 points lower on {sum(points < -3 for points in differences)} of {len(differences)}, "
        f"{min(differences)} at worst, {sum(differences) / len(differences):+.1f} in the mean",
    ]
    publish("random_mixes", this_machine(), notes, COLUMNS, rows)


if __name__ == "__main__":
    main()
