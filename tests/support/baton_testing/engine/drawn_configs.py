"""Random configs of the families that differ most from Llama, and their logits next to those of transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from baton_engine.model.loading import load_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import reference_logits, reference_model, write_random_model
from baton_wire.models.errors import ModelConfigError

CPU = torch.device("cpu")
KINDS = ("sliding_attention", "full_attention")
_LIMIT = GptOssExperts(GptOssConfig(num_local_experts=1, hidden_size=8, intermediate_size=8, swiglu_limit=0.5)).limit
LIMITS = (0.5, 7.0) if _LIMIT == 0.5 else (7.0,)
"""Older transformers, 5.17 for one, know the second alone, whatever the config says."""


@st.composite
def heads(draw: st.DrawFn) -> dict[str, Any]:
    """Heads and layers of any family."""
    kv_heads = draw(st.sampled_from([1, 2]))
    layers = draw(st.integers(1, 3))
    return {
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.sampled_from([1, 2, 3])),
        "num_hidden_layers": layers,
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def local_layers(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    return {
        "sliding_window": draw(st.integers(1, 40)),
        "layer_types": draw(st.lists(st.sampled_from(KINDS), min_size=layers, max_size=layers)),
    }


@st.composite
def ropes(draw: st.DrawFn) -> dict[str, Any]:
    """Bases and scalings of families that allow them all."""
    rope = {"rope_type": "default", "rope_theta": draw(st.sampled_from([10_000.0, 500_000.0]))}
    scaling = draw(st.sampled_from([None, "linear", "yarn", "llama3"]))
    if scaling is None:
        return rope
    rope |= {"rope_type": scaling, "factor": draw(st.sampled_from([2.0, 8.0]))}
    if scaling != "linear":
        rope["original_max_position_embeddings"] = 32
    if scaling == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": draw(st.sampled_from([4.0, 1.0]))}
    return rope


@st.composite
def gemma3(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(heads())
    fields |= draw(local_layers(fields["num_hidden_layers"]))
    fields |= {
        "head_dim": draw(st.sampled_from([8, 20, 32])),
        "query_pre_attn_scalar": draw(st.sampled_from([8, 168, 256])),
        "final_logit_softcapping": draw(st.sampled_from([None, 5.0, 30.0])),
        "attn_logit_softcapping": draw(st.sampled_from([None, None, None, 50.0])),
    }
    # Gemma's checks of transformers ask for a hidden size that the heads divide.
    return fields | {"hidden_size": 48}


@st.composite
def phi3(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(heads())
    dim = 48 // fields["num_attention_heads"]
    share = draw(st.sampled_from([1.0, 0.5]))
    pairs = int(dim * share) // 2
    factors = st.lists(st.floats(1.0, 8.0, width=32), min_size=pairs, max_size=pairs)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
    if draw(st.booleans()):
        original = draw(st.sampled_from([16, 256]))
        rope |= {"rope_type": "longrope", "short_factor": draw(factors), "long_factor": draw(factors)}
        rope["original_max_position_embeddings"] = original
        fields["original_max_position_embeddings"] = original
    window = draw(st.sampled_from([None, 9, 64]))
    return fields | {"rope_parameters": rope, "sliding_window": window}


@st.composite
def glm4(draw: st.DrawFn) -> dict[str, Any]:
    share = draw(st.sampled_from([0.25, 0.5, 1.0]))
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
    bias = draw(st.booleans())
    return draw(heads()) | {
        "head_dim": draw(st.sampled_from([16, 32])),
        "rope_parameters": rope,
        "attention_bias": bias,
    }


@st.composite
def gpt_oss(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(heads())
    experts = draw(st.integers(1, 5))
    return (
        fields
        | draw(local_layers(fields["num_hidden_layers"]))
        | {
            "head_dim": draw(st.sampled_from([8, 32])),
            "num_local_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, experts)),
            "swiglu_limit": draw(st.sampled_from(LIMITS)),
            "attention_bias": draw(st.booleans()),
        }
    )


@st.composite
def mixtral(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 5))
    return draw(heads()) | {
        "head_dim": draw(st.sampled_from([None, 8, 32])),
        "num_local_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "sliding_window": draw(st.sampled_from([None, 9, 64])),
    }


@st.composite
def qwen3_moe(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(heads())
    experts = draw(st.integers(1, 5))
    places = st.integers(0, fields["num_hidden_layers"] - 1)
    return fields | {
        "head_dim": draw(st.sampled_from([8, 32])),
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(st.sampled_from([16, 40])),
        "norm_topk_prob": draw(st.booleans()),
        "decoder_sparse_step": draw(st.sampled_from([1, 2])),
        "mlp_only_layers": draw(st.lists(places, unique=True, max_size=2)),
        "attention_bias": draw(st.booleans()),
    }


@st.composite
def qwen2_moe(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(qwen3_moe())
    del fields["head_dim"], fields["attention_bias"]
    return fields | {
        "shared_expert_intermediate_size": draw(st.sampled_from([8, 40])),
        "qkv_bias": draw(st.booleans()),
        "rope_parameters": draw(ropes()),
    }


@st.composite
def glm4_moe(draw: st.DrawFn) -> dict[str, Any]:
    groups = draw(st.sampled_from([1, 2, 3]))
    taken, each = draw(st.integers(1, groups)), draw(st.sampled_from([2, 3]))
    return draw(glm4()) | {
        "use_qk_norm": draw(st.booleans()),
        "n_routed_experts": groups * each,
        "n_group": groups,
        "topk_group": taken,
        "num_experts_per_tok": draw(st.integers(1, taken * each)),
        "n_shared_experts": draw(st.sampled_from([1, 2])),
        "moe_intermediate_size": draw(st.sampled_from([16, 40])),
        "norm_topk_prob": draw(st.booleans()),
        "routed_scaling_factor": draw(st.sampled_from([1.0, 2.5])),
        "first_k_dense_replace": draw(st.integers(0, 3)),
    }


@st.composite
def minimax_m2(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 5))
    share = draw(st.sampled_from([0.25, 0.5, 1.0]))
    return draw(heads()) | {
        "head_dim": draw(st.sampled_from([16, 32])),
        "num_local_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share},
    }


@st.composite
def granite(draw: st.DrawFn) -> dict[str, Any]:
    factors = {
        "embedding_multiplier": draw(st.sampled_from([0.5, 1, 12.0])),
        "attention_multiplier": draw(st.sampled_from([0.05, 0.2, 1])),
        "residual_multiplier": draw(st.sampled_from([0.22, 1])),
        "logits_scaling": draw(st.sampled_from([1, 2.5, 16])),
    }
    biases = {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    return draw(heads()) | factors | biases | {"rope_parameters": draw(ropes())}


@st.composite
def seed_oss(draw: st.DrawFn) -> dict[str, Any]:
    biases = {name: draw(st.booleans()) for name in ("attention_bias", "attention_out_bias", "mlp_bias")}
    return draw(heads()) | biases | {"head_dim": draw(st.sampled_from([8, 32])), "rope_parameters": draw(ropes())}


@st.composite
def olmo2(draw: st.DrawFn) -> dict[str, Any]:
    fields = {"head_dim": draw(st.sampled_from([8, 32])), "attention_bias": draw(st.booleans()), "pad_token_id": 0}
    return draw(heads()) | fields | {"rope_parameters": draw(ropes())}


@st.composite
def olmo3(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(olmo2())
    fields |= draw(local_layers(fields["num_hidden_layers"]))
    return fields | {"rope_parameters": {kind: draw(ropes()) for kind in KINDS}}


@st.composite
def ernie(draw: st.DrawFn) -> dict[str, Any]:
    fields = {"head_dim": draw(st.sampled_from([8, 32])), "use_bias": draw(st.booleans()), "pad_token_id": 0}
    return draw(heads()) | fields | {"rope_parameters": draw(ropes())}


@st.composite
def ernie_moe(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 5))
    return draw(heads()) | {
        "pad_token_id": 0,
        "moe_num_experts": experts,
        "moe_k": draw(st.integers(1, experts)),
        "moe_num_shared_experts": draw(st.integers(0, 2)),
        "moe_intermediate_size": draw(st.sampled_from([16, 40])),
        "moe_layer_start_index": draw(st.integers(0, 2)),
        "moe_layer_end_index": draw(st.sampled_from([-1, 1, 7])),
        "moe_layer_interval": draw(st.sampled_from([1, 2])),
        "moe_norm_min": draw(st.sampled_from([1e-12, 0.3])),
        "rope_parameters": draw(ropes()),
    }


@st.composite
def hunyuan(draw: st.DrawFn) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": draw(st.sampled_from([10_000.0, 11_158_840.0]))}
    rope |= draw(st.sampled_from([{}, {"rope_type": "linear", "factor": 2.0}]))
    if draw(st.booleans()):
        rope |= {"rope_type": "dynamic", "factor": 1.0, "alpha": draw(st.sampled_from([2.0, 1000.0]))}
    bias = draw(st.booleans())
    head_dim = draw(st.sampled_from([8, 32]))
    return draw(heads()) | {"head_dim": head_dim, "attention_bias": bias, "rope_parameters": rope, "pad_token_id": 0}


@st.composite
def hunyuan_moe(draw: st.DrawFn) -> dict[str, Any]:
    fields, experts = draw(hunyuan()), draw(st.integers(1, 5))
    taken = draw(st.integers(1, experts))
    return fields | {
        "num_experts": experts,
        "moe_topk": draw(st.sampled_from([taken, [taken] * fields["num_hidden_layers"]])),
    }


@st.composite
def llama4(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(heads())
    experts, layers = draw(st.integers(1, 5)), fields["num_hidden_layers"]
    rope = draw(ropes().filter(lambda rope: rope["rope_type"] != "yarn"))
    places = st.integers(0, layers - 1)
    rotates = st.lists(st.integers(0, 1), min_size=layers, max_size=layers)
    return fields | {
        "head_dim": draw(st.sampled_from([8, 32])),
        "intermediate_size_mlp": 80,
        "num_local_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_layers": draw(st.one_of(st.none(), st.lists(places, unique=True, max_size=2))),
        "no_rope_layers": draw(st.one_of(st.none(), rotates)),
        "no_rope_layer_interval": draw(st.sampled_from([2, 4])),
        "use_qk_norm": draw(st.booleans()),
        "attn_temperature_tuning": draw(st.booleans()),
        "attention_chunk_size": draw(st.sampled_from([40, 8_192])),
        "floor_scale": draw(st.sampled_from([41, 8_192])),
        "attention_bias": draw(st.booleans()),
        "rope_parameters": rope,
    }


@st.composite
def granite_moe(draw: st.DrawFn) -> dict[str, Any]:
    fields, experts = draw(granite()), draw(st.integers(1, 5))
    del fields["mlp_bias"]
    return fields | {"num_local_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts))}


@st.composite
def granite_moe_shared(draw: st.DrawFn) -> dict[str, Any]:
    return draw(granite_moe()) | {"shared_intermediate_size": draw(st.sampled_from([0, 8, 40]))}


@st.composite
def granite_hybrid(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(granite_moe())
    return fields | {
        "num_local_experts": draw(st.sampled_from([0, fields["num_local_experts"]])),
        "shared_intermediate_size": draw(st.sampled_from([8, 40])),
        "position_embedding_type": draw(st.sampled_from([None, "rope"])),
        "layer_types": ["full_attention"] * fields["num_hidden_layers"],
    }


CASES = {
    "gemma3": gemma3(),
    "phi3": phi3(),
    "glm4": glm4(),
    "glm": glm4(),
    "gpt-oss": gpt_oss(),
    "mixtral": mixtral(),
    "qwen3-moe": qwen3_moe(),
    "qwen2-moe": qwen2_moe(),
    "glm4-moe": glm4_moe(),
    "minimax-m2": minimax_m2(),
    "granite": granite(),
    "seed-oss": seed_oss(),
    "olmo2": olmo2(),
    "olmo3": olmo3(),
    "ernie4.5": ernie(),
    "ernie4.5-moe": ernie_moe(),
    "hunyuan": hunyuan(),
    "hunyuan-moe": hunyuan_moe(),
    "llama4": llama4(),
    "granite-moe": granite_moe(),
    "granite-moe-shared": granite_moe_shared(),
    "granite-4-dense": granite_hybrid(),
}


def check_logits(family: str, fields: dict[str, Any]) -> None:
    """Compare a random model of these fields with transformers: a prompt, then decoding one by one."""
    with tempfile.TemporaryDirectory() as held:
        directory = write_random_model(Path(held) / "model", family, **fields)
        if fields.get("attn_logit_softcapping") is not None:
            with pytest.raises(ModelConfigError, match="attn_logit_softcapping"):
                load_model(directory, torch.float32, CPU)
            return
        loaded = load_model(directory, torch.float32, CPU)
        reference = reference_model(directory)
        tokens = torch.randint(3, 199, (40,), generator=torch.Generator().manual_seed(3)).tolist()
        steps = ModelSteps(loaded)
        got = torch.cat((steps.prefill(chunk(0, tokens[:30])), *(steps.decode({0: token}) for token in tokens[30:])))
        torch.testing.assert_close(got, reference_logits(reference, tokens), rtol=0, atol=1e-4)


def compare_random_configs(family: str, count: int) -> int:
    """Number of configs that were compared. Raises AssertionError for the smallest that differs."""
    compared = 0

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(fields=CASES[family])
    def check(fields: dict[str, Any]) -> None:
        nonlocal compared
        check_logits(family, fields)
        compared += 1

    check()
    return compared
