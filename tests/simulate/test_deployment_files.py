"""`baton simulate -f FILE`: the deployment's own decision in a replay, and what its pools compute on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton_local.__main__ import main

GPU = "example.com/gpu"
H100 = {"resource": GPU, "type": "H100", "costPerHour": 3, "nodeSelector": {GPU: "h100"}}
H200 = {"resource": GPU, "type": "H200", "costPerHour": 5, "nodeSelector": {GPU: "h200"}}
MODEL = "hf://meta-llama/Llama-3.1-8B@" + "0" * 40


def written(folder: Path, **decode: Any) -> str:
    """A file whose decode pool may choose, of pools of two or more; `decode` changes its accelerator."""
    pool = {"replicas": {"min": 2, "max": 6}}
    document = {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"source": MODEL, "servedName": "chat", "maxContextTokens": 8192},
            "slo": {"ttft": {"target": "500ms", "percentile": 95}, "tpot": {"target": "25ms", "percentile": 95}},
            "prefill": {**pool, "accelerator": H200},
            "decode": {**pool, "accelerator": {**H200, "alternatives": [H100], **decode}},
        },
    }
    path = folder / "chat.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return str(path)


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    run = ["simulate", "--shape", "steady", "--rate", "3", "--startup-s", "60", "--model", "llama-3.1-8b"]
    assert main([*run, *arguments]) == 0
    return capsys.readouterr().out


def test_the_cheaper_type_takes_over_after_half_an_hour_and_nobody_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two decode workers of each type are more than enough, so the price alone decides. While both types are there the
    pool is no larger than a rollout's surge: once what had come on top was counted as wanted, pools grew to the most.
    """
    answer = json.loads(simulated(capsys, "-f", written(tmp_path), "--duration", "45m", "--json"))
    [change] = [move for move in answer["decisions"] if "type" in move]
    assert (change["pool"], change["type"]) == ("decode", "H100")
    assert 1800 <= change["at_s"] <= 2100, "half an hour was seen, and types are compared every two minutes"
    assert change["reason"].startswith("decode on H100: H200 2 at 10 an hour, H100 2 at 6 an hour")
    assert len(answer["decisions"]) == 1, "nothing else changes"
    by_type = {(row["pool"], row["type"]): row for row in answer["types"]}
    assert by_type.keys() == {("prefill", "H200"), ("decode", "H200"), ("decode", "H100")}
    [[_, gone_s]] = by_type["decode", "H200"]["there_s"]
    [[came_s, end_s]] = by_type["decode", "H100"]["there_s"]
    assert came_s < gone_s, "the new ones come first"
    assert 90 <= gone_s - came_s <= 180, "two starts of 60 s, one worker after the other"
    assert end_s == pytest.approx(2700, abs=20)
    hours = sum(row["gpu_hours"] for row in answer["types"])
    assert hours == pytest.approx(answer["gpu_hours"], abs=0.001)
    paid = {"H200": 5, "H100": 3}
    assert answer["cost"] == pytest.approx(
        sum(row["gpu_hours"] * paid[row["type"]] for row in answer["types"]), abs=0.01
    )
    assert hours == pytest.approx(4 * 0.75, rel=0.05), "and the surge"
    assert answer["slo_attainment"] > 0.97
    assert answer["rejected"] == 0


def test_a_type_that_is_not_cheaper_by_enough_stays_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, alternatives=[{**H100, "costPerHour": 4.8}])
    answer = json.loads(simulated(capsys, "-f", file, "--duration", "40m", "--json"))
    assert not [move for move in answer["decisions"] if "type" in move]
    assert {row["type"] for row in answer["types"]} == {"H200"}
    assert answer["cost"] == pytest.approx(5 * answer["gpu_hours"], abs=0.01)


def test_the_table_says_which_type_ran_when_and_the_plot_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "types.svg"
    text = simulated(capsys, "-f", written(tmp_path), "--duration", "40m", "--plot", str(plot))
    lines = {
        line.split("  ")[1].strip(): line for line in text.splitlines() if line.startswith(("  decode H", "  pre"))
    }
    assert lines.keys() == {"decode H100", "decode H200", "prefill H200"}
    assert " 0 … " in lines["decode H200"]
    assert lines["decode H100"].endswith("… 2400")
    assert "decode on H100: " in text
    assert plot.stat().st_size > 1000


def test_what_if_sets_the_types_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = simulated(capsys, "-f", written(tmp_path), "--duration", "10m", "--what-if")
    rows = [line.split() for line in text.splitlines()[2:]]
    assert [row[3] for row in rows if row[0] == "decode"] == ["H200", "H100"] * 3
    assert {row[3] for row in rows if row[0] == "prefill"} == {"H200"}
    usual = {row[3]: " ".join(row[4:]) for row in rows if row[:3] == ["decode", "TPOT", "25ms"]}
    assert usual["H200"].startswith("2 at 10 ")
    assert usual["H100"].startswith("2 at 6* ")


def test_others_are_compared_on_the_first_type_with_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path)
    answers = json.loads(simulated(capsys, "-f", file, "--duration", "5m", "--policy", "slo,2+2", "--json"))["policies"]
    assert answers[1]["cost"] == pytest.approx(5 * answers[1]["gpu_hours"], abs=0.01)
    assert "types" not in answers[1]


def test_a_pool_without_a_type_and_a_model_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).parents[2] / "examples" / "tiny.yaml")
    assert main(["simulate", "-f", example, "--shape", "steady", "--rate", "1", "--duration", "1m", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {(row["pool"], row["type"]) for row in answer["types"]} == {("prefill", "CPU"), ("decode", "CPU")}
    assert answer["cost"] is None, "the file has no price"


@pytest.mark.parametrize(
    "option", [("--ttft", "1s"), ("--accelerator", "h100"), ("--price", "2"), ("--max-workers", "3")]
)
def test_what_the_file_says_cannot_be_said_again(
    option: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-f", written(tmp_path), *option]) == 2
    assert f"{option[0]}: not allowed with -f" in capsys.readouterr().err


def test_a_model_that_is_not_here_has_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", written(tmp_path)]) == 2
    assert "MODEL: say which model" in capsys.readouterr().err
