"""`baton simulate --sessions` as a user calls it, and the gateway's routing on simulated workers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.workers.affinity import MAX_STEPS, STEP_TOKENS
from baton_local.__main__ import main
from baton_local.commands.production_routing import prefix_keys_of
from baton_local.commands.simulated_sessions import ROUTINGS

SMALL = ["simulate", "--sessions", "agents", "--session-count", "10", "--turns", "4", "--policy", "2+2"]


def test_every_routing_is_a_row_and_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--routing", ",".join(ROUTINGS)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == list(ROUTINGS)
    assert main([*SMALL, "--routing", ",".join(ROUTINGS), "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert [policy["routing"] for policy in policies] == list(ROUTINGS)
    for policy in policies:
        assert policy["turns"] == 40
        assert 0.0 < policy["cached_of_ideal"] <= 1.0
        assert policy["ttft_p95_s"] >= policy["ttft_p50_s"] > 0.0


def test_lengths_and_numbers_change_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--prompt-tokens", "900", "--shared-tokens", "500", "--new-tokens", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["prompt_tokens"] < 100_000
    assert main(["simulate", "--sessions", "11", "--session-count", "4", "--policy", "2+2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["load"] == "drawn shape 11"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "hpa-kv"], "--policy: 'hpa-kv' is not allowed with --sessions"),
        (["--routing", "baton,best"], "--routing: 'best' is not allowed: must be of baton, round-robin"),
        (["--trace", "x.csv"], "--sessions: not allowed with -f, --trace and --what-if"),
        (["--what-if"], "--sessions: not allowed with -f, --trace and --what-if"),
    ],
)
def test_what_sessions_do_not_go_with_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *arguments]) == 2
    assert complaint in capsys.readouterr().err


SEGMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2_000)), min_size=1, max_size=6)


@given(SEGMENTS, SEGMENTS)
def test_keys_of_two_prompts_are_equal_as_far_as_their_tokens_are(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    """Segments are joined into tokens that know their number and place."""
    keys, others = prefix_keys_of(one), prefix_keys_of(other)
    assert len(keys) == min(MAX_STEPS, sum(tokens for _, tokens in one) // STEP_TOKENS)
    common = 0
    for (number, tokens), (second, length) in zip(one, other, strict=False):
        common += min(tokens, length) if number == second else 0
        if number != second or tokens != length:
            break
    equal = sum(a == b for a, b in zip(keys, others, strict=False))
    assert equal == min(len(keys), len(others), common // STEP_TOKENS)
