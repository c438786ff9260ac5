"""`baton plan`: it plans what can be served and refuses the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from baton_local.__main__ import main
from baton_local.commands import plan
from baton_local.errors import StartError
from baton_local.hardware_arguments import shape_named
from baton_testing.engine import tiny_llama

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
FALCON = {**LLAMA, "model_type": "falcon", "architectures": ["FalconForCausalLM"]}


def folder(path: Path, config: dict[str, Any]) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_a_folder_with_a_model_that_can_be_served_is_planned(tmp_path: Path) -> None:
    assert shape_named(folder(tmp_path, LLAMA)).layers == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FALCON, 'cannot be served: model_type: "falcon" is not supported; allowed: '),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({**LLAMA, "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "longrope"),
    ],
)
def test_what_cannot_be_served_is_not_planned(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=message):
        shape_named(folder(tmp_path, config))


def test_what_is_no_model_is_told_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"neither one of llama-3\.1-8b, .* nor a folder with config\.json"):
        shape_named(str(tmp_path))


HUGE = {**LLAMA, "hidden_size": 16_384, "intermediate_size": 53_248, "num_attention_heads": 128}
HUGE = {**HUGE, "num_hidden_layers": 126, "torch_dtype": "float32"}


def test_a_model_that_does_not_fit_is_refused_in_gigabytes_and_told_what_would_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", folder(tmp_path, HUGE), "--accelerator", "h100"]) == 2
    message = capsys.readouterr().err
    assert "needs 1,6" in message
    assert "GB for its weights in 32 bits; 8 h100 have 576 GB for weights and KV" in message
    assert "no known accelerator holds it, not even with 4-bit weights" in message


def test_a_model_that_fits_after_rounding_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama-3.1-70b", "--accelerator", "h100", "--tensor-parallel", "1"]) == 2
    message = capsys.readouterr().err
    assert "with 8-bit weights (`baton quantise --format int8`) it fits on one h200" in message
    assert "with 4-bit weights (`baton quantise --format int4`) it fits on one h200, h100 or a100" in message


def test_a_plan_ends_in_a_sentence_with_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("One h200 holds the 16.1 GB of weights and 846,000 tokens of KV: 619 sequences of 1155+211 ")
    assert "366 at once within 25 ms" in last


def test_a_plan_says_which_load_it_assumes_and_counts_workers_for_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """Found: no load was named, `--rate` was "did you mean --price", and no output named the number of workers."""
    assert main(["plan"]) == 0
    printed = capsys.readouterr().out
    assert "prompts of 1155 and answers of 211 tokens (--prompt, --output), TPOT 25 ms (--tpot), no rate" in printed
    assert "workers for" not in printed
    assert main(["plan", "--rate", "100", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["prefill_workers"] == 4, "100 requests of 1,155 tokens at 80 % of 46,500 tokens/s"
    assert figures["decode_workers"] == 2
    assert main(["plan", "--rate", "100"]) == 0
    printed = capsys.readouterr().out
    assert "prefill workers for 100 requests/s at 80 % use" in printed
    assert "100 requests/s (--rate)" in printed
    assert main(["plan", "--sessions", "agents", "--rate", "1"]) == 2
    assert "--rate: not allowed with --sessions" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_model_that_is_elsewhere_is_refused_by_the_argument_that_was_typed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: the error was about --model, which nobody had typed, and did not say that nothing is downloaded."""
    assert main([command, "hf://Qwen/Qwen3-0.6B"]) == 2
    message = capsys.readouterr().err
    assert "MODEL: hf://Qwen/Qwen3-0.6B is neither one of llama-3.1-8b" in message
    assert "an estimate downloads nothing" in message
    assert "--model" not in message


def test_a_plan_shows_prices_only_where_one_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    assert "million" not in capsys.readouterr().out
    assert main(["plan", "--price", "2"]) == 0
    assert "in the currency of --price" in capsys.readouterr().out
    assert main(["plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost_per_million_output_tokens"] is None


def test_a_plan_for_several_accelerators_of_one_worker_is_one_that_can_be_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--model", "llama-3.1-70b", "--tensor-parallel", "4"]) == 0
    text = capsys.readouterr().out
    assert "on 4× h200" in text
    assert "plan only" not in text


def test_the_degree_of_each_pool_is_chosen_and_explained_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3.1-70b"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("llama-3.1-70b on 2× h200 per prefill worker and 4× per decode worker\n")
    assert "Ranks on h200: prefill 2 ranks (1 has too little memory, 4 takes 1." in text
    assert "; decode 4 ranks (1 has too little memory, 2 takes 1." in text
    assert main(["plan", "llama-3.1-70b", "--tpot", "10ms"]) == 0
    assert "; decode 8 ranks (1 has too little memory, 2 misses TPOT 10 ms, 4 misses TPOT 10 ms)." in (
        capsys.readouterr().out
    )


def test_degrees_that_are_asked_for_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3.1-70b", "--decode-tensor-parallel", "8"]) == 0
    text = capsys.readouterr().out
    assert "on 2× h200 per prefill worker and 8× per decode worker" in text
    assert "Ranks on h200: prefill 2 ranks (" in text
    assert "; decode" not in text
    assert main(["plan", "llama-3.1-70b", "--tensor-parallel", "2", "--decode-tensor-parallel", "4", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["prefill_ranks"], figures["decode_ranks"]) == (2, 4)


def test_a_degree_that_the_model_does_not_allow_is_refused_by_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder(tmp_path, {**LLAMA, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64})
    assert main(["plan", model, "--tensor-parallel", "8"]) == 2
    assert "--tensor-parallel: 8 ranks cannot share" in (message := capsys.readouterr().err)
    assert "; allowed: 1, 2, 4\n" in message
    assert main(["plan", model, "--tensor-parallel", "4"]) == 0
    assert main(["plan", model, "--tensor-parallel", "2", "--decode-tensor-parallel", "8"]) == 2
    assert "--decode-tensor-parallel: 8 ranks cannot share" in capsys.readouterr().err


def test_a_model_of_embeddings_is_planned_without_decode_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was promised a decode batch and answer tokens, and such a model has no decode pool."""
    model = folder(tmp_path, {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3Model"], "head_dim": 64})
    assert main(["plan", model]) == 0
    text = capsys.readouterr().out
    assert "decode worker" not in text
    assert "TPOT" not in text
    assert "so it has no decode pool: a prefill worker reads " in text.splitlines()[-1]
    assert main(["plan", model, "--json", "--price", "2"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["prefill_tokens_per_s"] > 0
    assert figures["prefill_cost_per_million_prompt_tokens"] > 0
    for name in ("decode_batch", "tpot_floor_ms", "decode_tokens_per_s", "cost_per_million_output_tokens"):
        assert figures[name] is None
    assert main(["plan", model, "--sessions", "agents"]) == 2
    assert "--sessions: not allowed for " in capsys.readouterr().err


def test_a_folder_whose_weights_are_broken_gets_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found: weights of 0 bytes got a table, although the page says that the folder is checked."""
    shutil.copytree(tiny_llama.FOLDER, tmp_path / "model")
    assert main(["plan", str(tmp_path / "model"), "--accelerator", "cpu"]) == 0
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert main(["plan", str(tmp_path / "model"), "--accelerator", "cpu"]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    (tmp_path / "model" / "model.safetensors").unlink()
    assert main(["plan", str(tmp_path / "model"), "--accelerator", "cpu"]) == 0, "a config alone is enough"


def test_a_plan_for_another_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "gpu_ids", lambda environment: ())
    assert main(["plan", str(tiny_llama.FOLDER)]) == 0
    assert "this machine has no h200: --accelerator cpu estimates for CPUs" in capsys.readouterr().err
    assert main(["plan", "llama-3.1-8b"]) == 0
    assert capsys.readouterr().err == "", "a known shape is planned for a cluster"
