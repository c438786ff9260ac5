"""Estimated answer lengths, from answers that ended and answers that still run."""

from __future__ import annotations

from statistics import mean

from baton_wire.rules.answer_lengths import KEPT_S, UNKNOWN_TOKENS, AnswerLengths


def drawn(answers: AnswerLengths, prompt_tokens: int, count: int = 100) -> list[int]:
    return [answers.likely(prompt_tokens, (place + 0.5) / count) for place in range(count)]


def test_nothing_is_known_of_prompts_to_which_no_answer_was_given() -> None:
    answers = AnswerLengths()
    answers.ended(1.0, 500, 900)
    answers.look(2.0, ())
    assert set(drawn(answers, 6000)) == {UNKNOWN_TOKENS}
    assert set(drawn(answers, 300)) == {900}


def test_answers_that_all_ended_are_drawn_as_they_were() -> None:
    answers = AnswerLengths()
    for tokens in range(1, 101):
        answers.ended(1.0, 500, tokens)
    answers.look(2.0, ())
    assert sorted(drawn(answers, 500)) == list(range(1, 101))


def test_answers_that_still_run_are_as_long_at_least_as_they_are() -> None:
    """All answers have 1,000 tokens, but a tenth has 10: after 400 tokens only those have ended."""
    answers = AnswerLengths()
    for _ in range(10):
        answers.ended(1.0, 500, 10)
    answers.look(2.0, [(500, 400)] * 90)
    lengths = drawn(answers, 500)
    assert lengths.count(10) == 10
    assert set(lengths) == {10, 800}


def test_in_a_steady_load_what_runs_changes_nothing_in_the_mean() -> None:
    """Answers of 100 to 1,000 tokens at 10 a second, each token takes 50 ms: half of those at work are half done."""
    answers, running = AnswerLengths(), []
    for number in range(6000):
        arrived_s, tokens = number / 10, 100 + 100 * (number * 7 % 10)
        done_s = arrived_s + 0.05 * tokens
        if done_s <= 600.0:
            answers.ended(done_s, 500, tokens)
        else:
            running.append((500, int((600.0 - arrived_s) / 0.05)))
    answers.look(600.0, running)
    assert 500 < mean(drawn(answers, 500)) < 620, "550"


def test_what_ended_long_ago_is_forgotten_when_there_is_newer() -> None:
    answers = AnswerLengths()
    for _ in range(100):
        answers.ended(1.0, 500, 10)
    for _ in range(100):
        answers.ended(2.0 + KEPT_S, 500, 900)
    answers.look(2.0 + KEPT_S, ())
    assert set(drawn(answers, 500)) == {900}


def test_a_kind_of_prompt_that_comes_back_is_known_still() -> None:
    answers = AnswerLengths()
    for _ in range(100):
        answers.ended(1.0, 500, 900)
    for number in range(5000):
        answers.ended(2.0 + number, 6000, 60)
    answers.look(5002.0, ())
    assert set(drawn(answers, 500)) == {900}
    assert set(drawn(answers, 6000)) == {60}
