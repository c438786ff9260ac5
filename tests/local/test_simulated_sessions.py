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


def test_pools_that_mode_slo_sizes_begin_as_planned_and_report_their_means(capsys: pytest.CaptureFixture[str]) -> None:
    long = ["simulate", "--sessions", "short", "--session-count", "60", "--users", "12", "--turns", "6"]
    assert main([*long, "--policy", "slo", "--max-workers", "3"]) == 0
    header, row = capsys.readouterr().out.splitlines()[1:3]
    assert "within TTFT*" in header
    assert row.startswith("baton ")
    assert main([*long, "--policy", "slo", "--max-workers", "3", "--json"]) == 0
    (sized,) = json.loads(capsys.readouterr().out)["policies"]
    assert sized["turns"] == 360
    assert 0.0 < sized["ttft_attainment"] <= 1.0
    assert 1.0 <= sized["mean_workers"]["prefill"] <= 3.0
    assert all(set(decision) == {"at_s", "pool", "from", "to", "reason"} for decision in sized["decisions"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "hpa-kv"], "--policy: 'hpa-kv' is not allowed with --sessions: must be slo, or a pool"),
        (
            ["--policy", "slo", "--think-scale", "0"],
            "--sessions: too short for --policy slo: all turns are sent in 300 s",
        ),
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
