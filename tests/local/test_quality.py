"""`baton quality`: the comparison by formulas, what the API tells, and a whole run through gateway, P and D."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baton_engine.model.quantising import quantise_model
from baton_local.errors import LocalError, StartError
from baton_local.quality.comparison import Place, compare, compare_answers, divergence
from baton_local.quality.measuring import _passages, as_text, compare_scores
from baton_local.quality.scoring import AnswerLogprobs, PromptEntry, Scored, answer_places, passages_of, prompt_places
from baton_testing.engine import tiny_llama


def likeliest(logprobs: torch.Tensor, k: int) -> dict[str, float]:
    top = logprobs.topk(k)
    return {str(int(token)): float(value) for token, value in zip(top.indices, top.values, strict=True)}


@pytest.mark.parametrize("distance", [1e-3, 0.1, 2.0])
def test_a_divergence_of_the_likeliest_is_a_lower_bound_and_exact_over_all(distance: float) -> None:
    draws = torch.Generator().manual_seed(3)
    for _ in range(50):
        p = torch.log_softmax(4 * torch.randn(64, generator=draws, dtype=torch.float64), -1)
        q = torch.log_softmax(p + distance * torch.randn(64, generator=draws, dtype=torch.float64), -1)
        exact = float((p.exp() * (p - q)).sum())
        bound, outside = divergence(likeliest(p, 64), likeliest(q, 64))
        assert bound == pytest.approx(exact, rel=1e-6)
        assert outside == pytest.approx(0.0, abs=1e-9)
        bound, outside = divergence(likeliest(p, 8), likeliest(q, 8))
        shared = set(likeliest(p, 8)) & set(likeliest(q, 8))
        assert outside == pytest.approx(1 - sum(math.exp(float(p[int(token)])) for token in shared), abs=1e-9)
        assert 0 <= bound <= exact * (1 + 1e-6)


def test_small_divergences_are_not_lost_in_rounding() -> None:
    """A shift by 1e-4 of every log probability's own size diverges by about 1e-9; float32 sums are off by 1e-7."""
    p = torch.log_softmax(torch.randn(20, generator=torch.Generator().manual_seed(1)), -1)
    q = torch.log_softmax(p + 1e-4 * torch.randn(20, generator=torch.Generator().manual_seed(2)), -1)
    exact = float((p.double().exp() * (p.double().log_softmax(-1) - q.double().log_softmax(-1))).sum())
    bound, _ = divergence(likeliest(p, 20), likeliest(q, 20))
    assert bound == pytest.approx(exact, rel=0.05)
    assert divergence(likeliest(p, 20), likeliest(p, 20))[0] == 0.0


def test_lists_without_a_common_token_compare_only_what_lies_outside() -> None:
    assert divergence({"1": math.log(0.9)}, {"2": math.log(0.9)}) == (0.0, 1.0)


def place(token: str, logprob: float = -0.5, other: str = "x") -> Place:
    return Place(token, logprob, {token: logprob, other: math.log(1 - math.exp(logprob))})


def test_perplexity_agreement_and_the_worst_are_those_of_the_formulas() -> None:
    theirs = [place(str(token), math.log(0.9)) for token in range(200)]
    mine = [place(str(token), math.log(0.4 if token < 3 else 0.9)) for token in range(200)]
    comparison = compare(list(zip(theirs, mine, strict=True)))
    one = 0.9 * math.log(0.9 / 0.4) + 0.1 * math.log(0.1 / 0.6)
    assert comparison.tokens == 200
    assert comparison.reference_perplexity == pytest.approx(1 / 0.9)
    assert comparison.perplexity == pytest.approx(math.exp(-(3 * math.log(0.4) + 197 * math.log(0.9)) / 200))
    assert comparison.same_likeliest == pytest.approx(197 / 200)
    assert comparison.divergence == pytest.approx(3 * one / 200, rel=1e-5)
    assert comparison.divergence_worst == pytest.approx(one, rel=1e-5)
    assert comparison.divergence_greatest == pytest.approx(one, rel=1e-5)


def test_answers_are_compared_up_to_the_token_where_they_part() -> None:
    theirs = [[place("a"), place("b"), place("c")], [place("a"), place("b")], [place("a")]]
    mine = [[place("a"), place("d"), place("c")], [place("a"), place("b")], [place("a"), place("b")]]
    comparison, changed = compare_answers(list(zip(theirs, mine, strict=True)))
    assert (comparison.tokens, changed, comparison.perplexity) == (5, 2, None)


def test_places_whose_texts_do_not_tell_tokens_apart_are_left_out_of_the_divergence() -> None:
    clear = {f"t{number}": -1.0 - number for number in range(20)}
    blurred = {"\ufffd": -1.0} | {f"t{number}": -1.5 - number for number in range(19)}
    places = answer_places(AnswerLogprobs(["t0"] * 3, [-1.0] * 3, [clear, blurred, {"t0": -1.0}]))
    assert [place.likeliest is None for place in places] == [False, True, True]
    comparison, changed = compare_answers([(places, places)])
    assert (comparison.tokens, comparison.same_likeliest, comparison.divergence, changed) == (3, 1.0, 0.0, 0)


def test_nothing_compared_is_unknown_and_not_zero() -> None:
    nothing = compare_scores([Scored((), ())], [Scored((), ())])
    assert nothing.prompts.perplexity is None
    assert nothing.answers.divergence is None
    assert as_text(nothing).splitlines()[2].split()[-2:] == ["-", "-"]


def test_models_that_make_other_tokens_of_a_text_are_not_compared() -> None:
    logprobs = [None, {"7": PromptEntry(-1.0), "8": PromptEntry(-0.5)}]
    other = [None, {"9": PromptEntry(-1.0)}]
    with pytest.raises(LocalError, match="passage 1: model and reference tokenise it differently"):
        compare_scores([Scored(prompt_places(logprobs), ())], [Scored(prompt_places(other), ())])


def test_a_text_is_cut_at_white_space_and_nothing_of_it_is_lost() -> None:
    text = "one two  three\n" * 9 + "y" * 70 + " end"
    pieces = passages_of(text, 32)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 32
    assert passages_of("   ", 32) == []


def test_a_file_of_lines_is_taken_line_by_line_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two\\u2028three", "more": 1}\n')
    assert _passages(path, 3) == ["one", "two\u2028three"]
    for bad in ('{"txt": "one"}', '{"text": ""}', "one", '{"text": 1}'):
        path.write_text(bad)
        with pytest.raises(StartError, match=r"asked\.jsonl: a line must be an object with a string 'text'"):
            _passages(path, 3)


@pytest.mark.processes
def test_a_copy_is_compared_through_both_pools(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    quantise_model(tiny_llama.FOLDER, copy, "fp8", lambda done, of: None)
    text = tmp_path / "text.txt"
    text.write_text((tiny_llama.FOLDER / "corpus" / "fables.txt").read_text()[:1200])
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "baton_local", "quality", str(copy), "--against", str(tiny_llama.FOLDER)]
    command += ["--text", str(text), "--passage-chars", "400", "--answer-tokens", "8", "--device", "cpu", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["asked"] == 4
    assert printed["prompts"]["tokens"] > 100
    assert printed["answers"]["tokens"] > 3
    assert 0 < printed["prompts"]["divergence"] < 0.05
    assert printed["prompts"]["same_likeliest"] > 0.9
    assert printed["prompts"]["perplexity"] != printed["prompts"]["reference_perplexity"]
    assert not list(tmp_path.glob("baton-*"))
