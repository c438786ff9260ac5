"""Step times from a model's shape, against runs that were measured on an H200."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baton_control.errors import ManifestError
from baton_control.sizing.inputs import fitting
from baton_control.sizing.inputs.model_shape import LLAMA_8B, LLAMA_70B, QWEN3_06B, ModelShape, shape_from_config
from baton_control.sizing.inputs.roofline import (
    Degrees,
    balance_batch,
    decode_times,
    kv_capacity_tokens,
    worker_model,
)
from baton_wire.rules.hardware import A100, H200
from baton_wire.rules.step_times import attended_pairs

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
}


def test_sizes_of_llama_8b_are_the_published_ones() -> None:
    shape = shape_from_config("llama", CONFIG)
    assert shape.parameters == LLAMA_8B.parameters == pytest.approx(8.03e9, rel=1e-3)
    assert shape.weight_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert shape.kv.of(1) == 131_072
    assert QWEN3_06B.kv.of(1) == 114_688


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
FP8_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
FP8_CHANNELS = {"config_groups": {"group_0": FP8_GROUP}, "format": "float-quantized"}


@pytest.mark.parametrize(
    ("section", "layers"),
    [
        (AWQ, 0.5 + 2 / 128),
        ({"quant_method": "fp8"}, 1.0),
        (FP8_CHANNELS, 1.0),
    ],
)
def test_quantised_weights_take_less_memory_and_time(section: dict[str, object], layers: float) -> None:
    shape = shape_from_config("llama", {**CONFIG, "quantization_config": section})
    assert shape.weight_bytes == pytest.approx(shape.block_parameters * layers + 2 * 2 * 128_256 * 4_096, rel=2e-3)
    plain = shape_from_config("llama", CONFIG)
    assert decode_times(shape, H200, 1).fixed_s < 0.7 * decode_times(plain, H200, 1).fixed_s
    assert kv_capacity_tokens(shape, H200, 1) > kv_capacity_tokens(plain, H200, 1)


QWEN3_30B: dict[str, object] = {
    **CONFIG,
    "model_type": "qwen3_moe",
    "max_position_embeddings": 40_960,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "vocab_size": 151_936,
}


def test_a_mixture_holds_every_expert_and_computes_those_that_a_token_takes() -> None:
    """Qwen3-30B-A3B: 3.3 of 30.5 G weights are active, as its page says."""
    shape = shape_from_config("moe", QWEN3_30B)
    assert shape.parameters == pytest.approx(30.5e9, rel=0.01)
    assert shape.weight_bytes == pytest.approx(61.0e9, rel=0.01)
    assert shape.block_parameters + 2 * shape.embedding_parameters == pytest.approx(3.35e9, rel=0.01)
    times = decode_times(shape, H200, 1)
    assert times.fixed_s > decode_times(LLAMA_8B, H200, 1).fixed_s
    assert times.per_sequence_s < decode_times(LLAMA_8B, H200, 1).per_sequence_s
    assert kv_capacity_tokens(shape, H200, 1) > 0


@pytest.mark.parametrize(("field", "value"), [("hidden_size", None), ("num_hidden_layers", 0), ("vocab_size", "big")])
def test_a_bad_config_names_the_field(field: str, value: object) -> None:
    with pytest.raises(ManifestError, match=field):
        shape_from_config("x", {**CONFIG, field: value})


@pytest.mark.parametrize(
    ("prompt", "measured_ms"), [(1024, 27.1), (4096, 100.4), (8192, 216.7), (16_384, 481.0), (32_768, 1197.4)]
)
def test_prefill_is_within_ten_percent_of_a_measured_engine(prompt: int, measured_ms: float) -> None:
    times = worker_model(LLAMA_8B, H200).prefill
    assert times.seconds(prompt, attended_pairs(prompt, 0)) * 1000 == pytest.approx(measured_ms, rel=0.10)


@pytest.mark.parametrize(
    ("batch", "context", "measured_ms"),
    [(1, 1024, 4.81), (32, 1024, 6.18), (128, 1024, 10.42), (256, 1024, 17.57), (32, 4096, 8.87)],
)
def test_decode_is_within_ten_percent_of_a_measured_engine(batch: int, context: int, measured_ms: float) -> None:
    times = worker_model(LLAMA_8B, H200).decode
    assert times.seconds(batch, batch * context) * 1000 == pytest.approx(measured_ms, rel=0.10)


@pytest.mark.parametrize(
    ("batch", "tokens", "measured_ms"),
    [
        (0, 1024, 22.8),
        (0, 4096, 96.5),
        (0, 8192, 207.0),
        (0, 32_768, 1189.0),
        (1, 1024, 4.05),
        (32, 1024, 5.34),
        (128, 1024, 9.30),
        (256, 1024, 15.65),
        (32, 4096, 8.18),
    ],
)
def test_the_roofline_is_near_what_the_own_engine_was_measured_to_take(
    batch: int, tokens: int, measured_ms: float
) -> None:
    """Middles of the ranges recorded in lab/; where no step has been seen yet, sizing starts from this."""
    model = worker_model(LLAMA_8B, H200)
    predicted = (
        model.decode.seconds(batch, batch * tokens)
        if batch
        else model.prefill.seconds(tokens, attended_pairs(tokens, 0))
    )
    assert predicted * 1000 == pytest.approx(measured_ms, rel=0.16)


@pytest.mark.parametrize(
    ("shape", "batch", "limit_ms"),
    [(LLAMA_8B, 1, 1.93), (LLAMA_8B, 32, 2.50), (LLAMA_8B, 128, 4.16), (LLAMA_70B, 1, 16.8), (LLAMA_70B, 32, 18.3)],
)
def test_two_ranks_are_above_the_limit_of_their_memory_and_links_and_below_one(
    shape: ModelShape, batch: int, limit_ms: float
) -> None:
    """The limits are of 1k contexts, with the fastest all-reduce that was published for two H200s."""
    step_s = decode_times(shape, H200, 2).seconds(batch, batch * 1024)
    assert limit_ms < step_s * 1e3 < 1.65 * limit_ms
    assert step_s < decode_times(shape, H200, 1).seconds(batch, batch * 1024)


def test_each_rank_reads_and_holds_its_share_and_kv_heads_are_repeated_when_ranks_exceed_them() -> None:
    few = replace(LLAMA_70B, kv_heads=2)
    shares = [few.kv_share(ranks) for ranks in (1, 2, 4, 8)]
    assert shares == [1.0, 0.5, 0.5, 0.5]
    reads = [decode_times(few, H200, ranks).per_kv_token_s for ranks in (2, 4, 8)]
    assert reads[0] == reads[1] == reads[2] == decode_times(few, H200, 1).per_kv_token_s / 2
    eight = [kv_capacity_tokens(few, H200, ranks) for ranks in (2, 4, 8)]
    assert eight[0] < eight[1] < eight[2] < 127e9 / (few.kv.of(1) / 2), "what is left by smaller shares of the weights"
    for shape in (LLAMA_8B, LLAMA_70B, QWEN3_06B):
        assert shape.rank_weight_bytes(1) == shape.weight_bytes
        assert shape.rank_step_bytes(1) == shape.step_weight_bytes
        assert shape.weight_bytes / 2 < shape.rank_weight_bytes(2) < shape.weight_bytes


def test_pools_of_unequal_degrees_have_their_own_times_and_room() -> None:
    both = worker_model(LLAMA_70B, H200, Degrees(2, 4))
    two, four = (worker_model(LLAMA_70B, H200, degree) for degree in (2, 4))
    assert (both.prefill, both.decode) == (two.prefill, four.decode)
    assert (both.prefill_capacity_tokens, both.kv_capacity_tokens) == (two.kv_capacity_tokens, four.kv_capacity_tokens)
    assert both.accelerators == (2, 4)
    assert both.link_bytes_per_s == two.link_bytes_per_s, "the side with fewer ranks has fewer links"
    observed = both.with_kv_capacity(four.kv_capacity_tokens // 2)
    assert observed.prefill_capacity_tokens == pytest.approx(two.kv_capacity_tokens / 2, rel=1e-3)
    assert two.with_kv_capacity(1000).prefill_capacity_tokens == 1000


def test_an_all_reduce_takes_what_was_measured_and_straight_lines_between() -> None:
    table = H200.all_reduce
    assert table.seconds(1, 1e9) == 0.0
    assert table.seconds(2, 8e3) == pytest.approx(6.3e-6)
    assert table.seconds(2, 1) == pytest.approx(6.3e-6), "less than was measured is not faster"
    assert table.seconds(2, 33.5e6) == pytest.approx(109e-6)
    assert table.seconds(2, 67e6) == pytest.approx(109e-6 * 2, rel=0.05)
    assert 7.8e-6 < table.seconds(2, 600e3) < 10.3e-6
    assert table.seconds(3, 8e3) == table.seconds(4, 8e3)
    assert table.seconds(16, 8e3) == table.seconds(8, 8e3)
    fixed_s, byte_s = table.line(2, (8e3, 1e6))
    assert fixed_s + byte_s * 1e6 == pytest.approx(10.3e-6)


def test_weights_that_do_not_fit_are_refused() -> None:
    assert balance_batch(LLAMA_8B, H200) == pytest.approx(178, abs=1)
    with pytest.raises(ManifestError, match="tensorParallel"):
        worker_model(LLAMA_70B, A100, 1)


def test_a_fit_finds_the_true_times_through_warm_up_and_outliers() -> None:
    believed = worker_model(LLAMA_8B, H200).decode
    random = np.random.default_rng(3)
    steps: list[fitting.Step] = []
    for step in range(1500):
        batch = int(random.integers(1, 300))
        kv = float(batch * random.integers(200, 3000))
        true = 1.3 * believed.base_s(batch) + 1.1 * believed.per_kv_token_s * kv
        slow = 20.0 if step < 15 or step % 50 == 0 else 1.0
        steps.append(("w0", fitting.decode_features(believed, batch, kv), true * slow))
    fitted = fitting.decode_times(fitting.learn(fitting.decode_prior(believed), steps), believed)
    for batch, kv in ((8, 8000.0), (100, 150_000.0), (250, 300_000.0)):
        true = 1.3 * believed.base_s(batch) + 1.1 * believed.per_kv_token_s * kv
        assert fitted.seconds(batch, kv) == pytest.approx(true, rel=0.03)


def fed(fit: fitting.Fit, steps: int, speed: float, seed: int) -> fitting.Fit:
    """After steps of a worker that takes `speed` times what an 8B model on an H200 is believed to take; each 50th takes
    20 times that."""
    believed = worker_model(LLAMA_8B, H200).decode
    random = np.random.default_rng(seed)
    for step in range(steps):
        batch = int(random.integers(1, 300))
        kv = float(batch * random.integers(200, 3000))
        slow = 20.0 if step % 50 == 49 else 1.0
        true = believed.seconds(batch, kv) * speed * slow * float(random.uniform(0.97, 1.03))
        fit = fitting.learn(fit, [("w0", fitting.decode_features(believed, batch, kv), true)])
    return fit


@pytest.mark.parametrize("speed", [0.05, 0.5, 3.0, 20.0, 40.0])
def test_a_prior_that_is_wrong_many_times_over_is_corrected(speed: float) -> None:
    believed = worker_model(LLAMA_8B, H200).decode
    fitted = fitting.decode_times(fed(fitting.decode_prior(believed), 400, speed, seed=5), believed)
    for batch, kv in ((8, 8000.0), (100, 150_000.0), (250, 300_000.0)):
        assert fitted.seconds(batch, kv) == pytest.approx(speed * believed.seconds(batch, kv), rel=0.05)


@pytest.mark.parametrize("change", [0.1, 0.7, 1.5, 12.0])
def test_a_change_of_speed_is_believed_and_a_short_pause_is_not(change: float) -> None:
    believed = worker_model(LLAMA_8B, H200).decode
    before = fed(fitting.decode_prior(believed), 600, 1.0, seed=6)
    paused = fed(before, 40, change, seed=7)
    after = fed(paused, 4_000, change, seed=8)
    was, now = (fitting.decode_times(fit, believed).seconds(100, 150_000.0) for fit in (paused, after))
    true = believed.seconds(100, 150_000.0)
    if not 0.5 < change < 2.0:
        assert was == pytest.approx(true, rel=0.05), "forty steps may be a pause"
    assert now == pytest.approx(change * true, rel=0.1)


def test_multipliers_solve_the_equations_of_all_steps_and_the_prior() -> None:
    """As if all steps were there at once: each counts less by the forgetting, and the prior makes up for it."""
    random = np.random.default_rng(4)
    prior = (0.01, 1e-4, 2e-5, 1e-7)
    features = np.column_stack([np.ones(400), random.uniform(1, 256, (400, 2)), random.uniform(1e3, 1e5, 400)])
    seconds = features @ (np.array(prior) * (1.1, 0.9, 1.2, 0.8)) * random.normal(1.0, 0.01, 400)
    steps = [("w", row.tolist(), float(took)) for row, took in zip(features, seconds, strict=True)]
    fit = fitting.fresh(prior)
    for step in steps:
        fit = fitting.learn(fit, [step])
    at_once = fitting.learn(fitting.fresh(prior), steps)
    assert at_once.multipliers == fit.multipliers
    assert at_once.steps == 400 - fitting.WARM_STEPS
    assert fit.multipliers == pytest.approx(np.linalg.solve(fit.gram, fit.moment).tolist(), rel=1e-9)
    assert np.allclose(fit.gram, fit.gram.T, rtol=1e-12)


def test_a_slow_worker_is_a_bias_and_absurd_timings_are_nothing() -> None:
    believed = worker_model(LLAMA_8B, H200).prefill
    fit = fitting.prefill_prior(believed)
    for bad in (float("nan"), -1.0, 0.0, 1e300):
        assert fitting.learn(fit, [("w", (1.0, 10.0, 10.0), bad)]) is fit
    random = np.random.default_rng(4)
    for _ in range(800):
        tokens = float(random.integers(100, 4000))
        features = fitting.prefill_features(tokens, attended_pairs(tokens, 0))
        true = believed.seconds(tokens, attended_pairs(tokens, 0))
        fit = fitting.learn(fit, [("fast", features, true), ("slow", features, true * 1.08)])
    assert fit.bias["slow"] / fit.bias["fast"] == pytest.approx(1.08, rel=0.02)
    again = fitting.restore(fitting.save(fit), fit.prior)
    assert again.multipliers == pytest.approx(fit.multipliers, rel=1e-3)
    assert len(fitting.save(fit)) < 200
    assert fitting.restore("{}", fit.prior).steps == 0


GPT_OSS_20B: dict[str, object] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 24,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201_088,
    "sliding_window": 128,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
GEMMA3_1B: dict[str, object] = {
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "num_hidden_layers": 26,
    "intermediate_size": 6912,
    "vocab_size": 262_144,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
}


def test_layers_with_a_window_keep_move_and_read_it_alone() -> None:
    """Half of gpt-oss' layers see 128 positions: at 32k they keep next to nothing."""
    shape, context = shape_from_config("gpt-oss", GPT_OSS_20B), 32_768
    of_layer = 2 * 8 * 64 * 2
    assert shape.kv.of(context) == 12 * of_layer * (context + 128 + 62)
    assert shape.kv.of(100) == 24 * of_layer * 100
    times = decode_times(shape, H200, 1, context)
    assert times.per_kv_token_s == pytest.approx(12 * of_layer / H200.kv_bytes_per_s)
    whole = replace(shape, kinds=())
    held, held_whole = (kv_capacity_tokens(model, H200, 1, context) for model in (shape, whole))
    assert held == pytest.approx(1.99 * held_whole, rel=0.01)
    model = worker_model(shape, H200, context_tokens=context)
    assert model.decode.seconds(8, 8 * context) < decode_times(whole, H200, 1).seconds(8, 8 * context)


def test_groups_that_are_not_full_keep_what_their_blocks_have_room_for() -> None:
    """Gemma 3 1B: 4 layers see all, 22 a window; in groups of 4 these have room for 24."""
    shape = shape_from_config("gemma", GEMMA3_1B)
    assert [(kind.window, kind.layers, kind.room) for kind in shape.kinds] == [(None, 4, 4), (512, 22, 24)]
    assert shape.kv.of(10_000) == 2 * 256 * 2 * (4 * 10_000 + 24 * (512 + 62))
    assert shape.attending(10_000) == (4.0, 22.0 * 512)


def test_a_model_with_windows_in_all_layers_has_room_for_any_number_of_tokens() -> None:
    shape = shape_from_config(
        "mistral", {**CONFIG, "model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32_768}
    )
    assert shape.kv.of(1 << 20) == 131_072 * (4096 + 62)
    assert shape.kv.of(4096) == 131_072 * 4096
    assert decode_times(shape, H200, 1).per_kv_token_s == 0.0
    assert decode_times(shape, H200, 1).seconds(8, 0) > decode_times(LLAMA_8B, H200, 1).seconds(8, 0)
