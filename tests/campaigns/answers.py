"""Readers of answers, in numbers: `make campaign RUN="answers --splits 100000"`.

For each format: answers that are drawn and written by rules of our own are read whole and in pieces cut anywhere, which
must agree with each other and with what was drawn. Answers that were spoilt are read to the end, and every character
must be accounted for. Exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import random
import time

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.gateway.answer_transcripts import (
    FAMILIES,
    check_spans,
    cuts_of,
    draw_answer,
    form_of,
    read_cut,
    read_whole,
    same,
    spans_of,
    spoilt,
)
from baton_testing.gateway.answers_by_hand import BY_HAND


def campaign(family: str, transcripts: int, splits: int, fuzzed: int, dice: random.Random) -> dict[str, Cell]:
    """Raises AssertionError at the first difference."""
    began = time.monotonic()
    done = 0
    for number in range(transcripts):
        drawn = draw_answer(dice, family, with_thoughts=number % 2 == 0)
        whole = read_whole(drawn.form, drawn.text)
        assert same(whole, drawn.answer), (drawn.text, whole, drawn.answer)
        assert read_cut(drawn.form, drawn.text, range(1, len(drawn.text))) == whole, drawn.text
        for _ in range(-(-splits // transcripts)):
            cuts = cuts_of(dice, len(drawn.text))
            assert read_cut(drawn.form, drawn.text, cuts) == whole, (drawn.text, cuts)
            done += 1
    for number in range(fuzzed):
        text = dice.choice(BY_HAND[family]) if number % 4 == 0 else draw_answer(dice, family, True).text
        text, form = spoilt(dice, text), form_of(family, number % 2 == 0)
        cuts = cuts_of(dice, len(text))
        check_spans(text, spans_of(form, text, cuts))
        assert read_cut(form, text, cuts) == read_whole(form, text), (text, cuts)
    return {
        "format": family,
        "transcripts": transcripts,
        "splits": done,
        "spoilt": fuzzed,
        "differences": 0,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.answers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transcripts", type=int, default=200, help="answers drawn for each format")
    parser.add_argument("--splits", type=int, default=100_000, help="ways to cut them, for each format")
    parser.add_argument("--fuzzed", type=int, default=5_000, help="spoilt answers for each format")
    parser.add_argument("--formats", nargs="*", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows: list[dict[str, Cell]] = []
    for family in arguments.formats:
        dice = random.Random(f"{arguments.seed} {family}")
        rows.append(campaign(family, arguments.transcripts, arguments.splits, arguments.fuzzed, dice))
        print(rows[-1], flush=True)
    notes = ["Answers read whole, in pieces, and spoilt; a difference ends the campaign."]
    publish("campaign_answers", this_machine(), notes, tuple(rows[0]), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
