"""`baton simulate --sessions` as a user calls it."""

from __future__ import annotations

import json

import pytest

from baton_local.__main__ import main
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
