"""`baton simulate` and `baton plan` as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from baton_local.__main__ import main

SMALL = ["simulate", "--shape", "step", "--rate", "12", "--duration", "3m", "--startup-s", "20"]


@pytest.mark.parametrize(
    "policy", ["slo", "static", "oracle", "hpa-queue", "hpa-kv", "kpa", "dynamo", "llmd-v1", "apa", "plain"]
)
def test_every_policy_answers_in_json(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--policy", policy, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert 0.0 <= answer["slo_attainment"] <= 1.0
    assert answer["gpu_hours"] > 0
    assert answer["goodput_per_gpu"] > 0
    assert isinstance(answer["decisions"], list)


def test_a_worker_is_started_only_where_fewer_would_break_the_percentile(capsys: pytest.CaptureFixture[str]) -> None:
    """A minute of burst every five once started workers where the reason said that one fewer lost 0.2 %."""
    bursts = ["simulate", "--shape", "burst", "--rate", "36", "--duration", "20m", "--json"]
    assert main(bursts) == 0
    reasons = [move["reason"] for move in json.loads(capsys.readouterr().out)["decisions"]]
    grown = [re.search(r"; with \d+, ([\d.]+)% or more would be over", reason) for reason in reasons]
    late = [float(match[1]) for match in grown if match is not None]
    assert late, "it has to grow for a burst"
    assert min(late) >= 5.0


@pytest.mark.parametrize("seed", ["2", "4"])
def test_nothing_is_started_for_bursts_through_which_the_percentile_is_kept(
    seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker a pool keeps 99.5 % of 95; a second was started for a burst, and stopped in the midst of the next."""
    assert main(["simulate", "--shape", "burst", "--rate", "12", "--duration", "20m", "--json", "--seed", seed]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["decisions"] == []
    assert min(answer["ttft_attainment"], answer["tpot_attainment"]) >= 0.95


def test_nothing_is_started_that_would_come_after_its_need(capsys: pytest.CaptureFixture[str]) -> None:
    """A minute of burst every ten, 130 s to start: behind the first of them it is known that a start comes too late.
    One worker a pool keeps 98.1 % of 95."""
    assert main(["simulate", "--shape", "burst", "--rate", "24", "--duration", "40m", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    started = [move["at_s"] for move in answer["decisions"] if move["to"] > move["from"]]
    assert started, "nobody knew of the first that it would end"
    assert max(started) < 360.0
    assert min(answer["ttft_attainment"], answer["tpot_attainment"]) >= 0.95


def test_workers_that_can_change_role_do_so_in_a_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "turn.csv"
    rows = [(i / 8, 300, 1100) for i in range(1600)] + [(200.0 + i / 6, 6000, 10) for i in range(720)]
    lines = [f"{at:.1f},{prompt},{output}" for at, prompt, output in rows]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]))
    run = ["simulate", "--trace", str(trace), "--model", "llama-3.1-70b", "--tensor-parallel", "2", "--ttft", "1.5s"]
    run += ["--tpot", "30ms", "--startup-s", "60", "--json"]
    answers = []
    for more in ([], ["--flip-time", "2s"]):
        assert main([*run, *more]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert not any(" now, " in move["reason"] for move in answers[0]["decisions"])
    assert any(" now, " in move["reason"] for move in answers[1]["decisions"])
    assert answers[1]["slo_attainment"] > answers[0]["slo_attainment"] - 0.02
    assert answers[1]["gpu_hours"] < 0.95 * answers[0]["gpu_hours"], "flips instead of starts"


def test_faults_are_replayed_and_the_timeline_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "timeline.svg"
    faults = ["--metrics-lost", "60-120", "--worker-dies", "prefill@90", "--plot", str(plot)]
    assert main([*SMALL, *faults]) == 0
    assert "within both targets" in capsys.readouterr().out
    assert plot.stat().st_size > 1000


def test_several_policies_are_compared_in_one_table_and_one_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "front.svg"
    assert main([*SMALL, "--policy", "slo,llmd-v1,2+1,9+9", "--price", "2", "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[2:]}
    assert list(rows) == ["slo", "llmd-v1", "2+1", "9+9"]
    assert rows["2+1"][-1] == rows["9+9"][-1] == "0", "a fixed pool never changes"
    assert float(rows["9+9"][4]) == pytest.approx(18 * 180 / 3600, rel=0.02), "18 accelerators for three minutes"
    assert float(rows["9+9"][5]) == pytest.approx(2 * float(rows["9+9"][4]), rel=0.02)
    assert float(rows["9+9"][1].rstrip("%")) >= float(rows["2+1"][1].rstrip("%"))
    drawn = plot.read_text()
    assert "requests outside either target, %" in drawn
    assert all(f"<!-- {name} -->" in drawn for name in rows)


def test_several_policies_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--policy", "static,2+1", "--price", "3", "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert [policy["policy"] for policy in policies] == ["static", "2+1"]
    assert policies[1]["cost"] == pytest.approx(3 * policies[1]["gpu_hours"], rel=1e-3)


def test_what_if_answers_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--what-if"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert "4x" in lines[1]


def test_plan_gives_the_published_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama-3.1-8b", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["kv_bytes_per_token"] == 131_072
    assert figures["weight_gb"] == pytest.approx(16.06, abs=0.01)
    assert figures["balance_batch"] == pytest.approx(178, abs=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "nothing"], "nothing"),
        (["plan", "--accelerator", "abacus"], "--accelerator"),
        (["plan", "llama-3.1-70b", "--tensor-parallel", "1"], "needs 141 GB for its weights"),
        (["simulate", "--trace", "/nowhere.csv"], "--trace"),
        (["simulate", "--trace", "/nowhere.csv", "--duration", "10m"], "--duration: 600 s is not allowed with --trace"),
        (["simulate", "--rate", "-3"], "--rate"),
        (["simulate", "--policy", "slo,nothing"], "'nothing' is not allowed"),
        (["simulate", "--policy", "0+3"], "'0+3' is not allowed"),
        (["simulate", "--price", "-1"], "--price"),
        (["simulate", "--percentile", "100"], "--percentile"),
    ],
)
def test_bad_options_are_one_line_and_status_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_pools_that_sleep_in_a_replay_cost_less(capsys: pytest.CaptureFixture[str]) -> None:
    """A request in five minutes: awake they cost as much as 140 late ones."""
    sparse = ["simulate", "--shape", "steady", "--rate", "0.003", "--duration", "4h", "--startup-s", "30", "--json"]
    hours = {}
    for rule in ((), ("--sleep-after", "1m")):
        assert main([*sparse, *rule]) == 0
        answer = json.loads(capsys.readouterr().out)
        hours[rule[:1]] = answer["gpu_hours"]
        assert (answer["decisions"] == []) == (not rule)
    assert hours["--sleep-after",] < 0.5 * hours[()]


@pytest.mark.parametrize("price", ["-1", "1e9"])
def test_a_price_is_in_bounds(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--price", price]) != 0
    assert "--price" in capsys.readouterr().err


def test_a_plan_sets_types_of_accelerators_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--accelerator", "h200,h100", "--price", "5,3", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert list(plans) == ["h200", "h100"]
    pools = ("prefill_cost_per_million_prompt_tokens", "decode_cost_per_million_output_tokens")
    assert all(plans["h100"][pool] < plans["h200"][pool] for pool in pools)
    assert main(["plan", "--accelerator", "h200", "--price", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plans["h200"]
    assert main(["plan", "--accelerator", "h200,h100", "--price", "5,3"]) == 0
    assert "h200       h100" in capsys.readouterr().out


@pytest.mark.parametrize("price", ["5", "5,3,1", "5,x", "5,-1"])
def test_a_plan_has_one_price_for_each_type(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--accelerator", "h200,h100", "--price", price]) != 0
    assert "--price" in capsys.readouterr().err
