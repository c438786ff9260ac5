"""A prompt that was just sent counts as cached where it went, until its worker can have announced it."""

from __future__ import annotations

from baton_gateway.workers.sent_prompts import LINGER_S, MOST_PROMPTS, SentPrompts
from baton_wire.messages.values import pack_ids
from baton_wire.rules.prefix_digests import packed_places

P, D = b"P" * 16, b"D" * 16
SIZE = 16


def names(*runs: tuple[int, int]) -> bytes:
    """Places of a prompt: a number of tokens of each kind in turn."""
    return packed_places(pack_ids([kind for kind, count in runs for _ in range(count)]), "", SIZE)


def test_a_common_beginning_is_found_to_the_block_wherever_prompts_part() -> None:
    sent = SentPrompts()
    sent.record(b"run 1", [(P, SIZE, names((1, 5_000), (2, 3_000)))], 0.0)
    assert sent.longest(names((1, 5_000), (3, 9_000)), SIZE, 0.0) == {P: 5_000 // SIZE}
    assert sent.longest(names((1, 5_000), (2, 50)), SIZE, 0.0) == {P: 5_050 // SIZE}
    assert sent.longest(names((1, 5_000), (2, 3_000), (4, 500)), SIZE, 0.0) == {P: 8_000 // SIZE}
    assert sent.longest(names((1, 40), (3, 100)), SIZE, 0.0) == {P: 2}
    assert sent.longest(names((3, 100)), SIZE, 0.0) == {}
    assert sent.longest(b"", SIZE, 0.0) == {}


def test_a_prompt_is_forgotten_shortly_after_its_first_token() -> None:
    sent, prompt = SentPrompts(), names((1, 100))
    sent.record(b"run 1", [(P, SIZE, prompt), (D, SIZE, prompt)], 0.0)
    assert sent.longest(prompt, SIZE, 99.0) == {P: 6, D: 6}
    sent.settle(b"run 1", 100.0)
    sent.settle(b"run 1", 100.5)
    assert sent.longest(prompt, SIZE, 100.0 + LINGER_S / 2) == {P: 6, D: 6}
    assert sent.longest(prompt, SIZE, 100.0 + LINGER_S) == {}
    assert (len(sent), sent._latest) == (0, {})


def test_another_attempt_replaces_the_one_before() -> None:
    sent, prompt = SentPrompts(), names((1, 100))
    sent.record(b"run 1", [(P, SIZE, prompt)], 0.0)
    sent.settle(b"run 1", 0.0)
    sent.record(b"run 1", [(D, SIZE, prompt)], 0.5)
    assert sent.longest(prompt, SIZE, LINGER_S + 1.0) == {D: 6}


def test_of_two_prompts_with_a_common_place_the_later_one_counts_and_its_end_forgets_no_other() -> None:
    sent = SentPrompts()
    sent.record(b"run 1", [(P, SIZE, names((1, 64), (2, 64)))], 0.0)
    sent.record(b"run 2", [(P, SIZE, names((1, 64), (3, 64)))], 0.0)
    sent.settle(b"run 2", 0.0)
    assert sent.longest(names((1, 64), (2, 64)), SIZE, LINGER_S) == {P: 8}


def test_the_number_of_prompts_is_bounded() -> None:
    sent = SentPrompts()
    for number in range(MOST_PROMPTS + 50):
        sent.record(number.to_bytes(16, "big"), [(P, SIZE, names((number + 9, 16)))], 0.0)
    assert len(sent) == MOST_PROMPTS
    assert len(sent._latest) == MOST_PROMPTS
    sent.settle(b"unknown", 0.0)
