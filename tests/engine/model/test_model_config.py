"""config.json of every family is understood; everything that would be computed wrongly is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton_engine.model.model_directory import read_spec
from baton_wire.models.config_fields import JsonObject
from baton_wire.models.decoder_spec import DecoderSpec, Dense
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.parsing import parse_spec
from baton_wire.models.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling

LLAMA: JsonObject = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def dense(config: DecoderSpec) -> Dense:
    block = config.layers[0].feed_forward
    assert isinstance(block, Dense)
    return block


def windows_of(config: DecoderSpec) -> tuple[int | None, ...]:
    return tuple(layer.mixer.window for layer in config.layers)


def llama(**fields: Any) -> JsonObject:
    return {**LLAMA, **fields}


def qwen(kind: str, **fields: Any) -> JsonObject:
    architecture = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    return llama(model_type=kind, architectures=[architecture], **fields)


def mistral(**fields: Any) -> JsonObject:
    return llama(model_type="mistral", architectures=["MistralForCausalLM"], **fields)


def without(config: JsonObject, name: str) -> JsonObject:
    return {key: value for key, value in config.items() if key != name}


def test_a_llama_config_is_read() -> None:
    config = parse_spec(llama(torch_dtype="bfloat16", eos_token_id=[7, 9]), {"eos_token_id": 5})
    assert (config.num_layers, config.attention.q_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert (config.hidden_size, dense(config).inner, config.vocab_size) == (64, 96, 128)
    assert (config.norm_eps, config.max_context_tokens, config.dtype) == (1e-5, 4096, "bfloat16")
    assert config.ropes == (RopeConfig(10_000.0, None),)
    assert windows_of(config) == (None, None)
    assert config.eos_token_ids == (5, 7, 9)
    mixer = config.attention
    options = (config.tied_head, mixer.qkv_bias, mixer.output_bias, dense(config).bias, mixer.qk_norm)
    assert options == (False,) * 5


def test_fields_that_a_llama_config_may_leave_out_have_the_defaults_of_transformers() -> None:
    config = parse_spec({key: LLAMA[key] for key in LLAMA if key not in ("num_key_value_heads", "rms_norm_eps")})
    assert (config.num_kv_heads, config.norm_eps, config.dtype, config.eos_token_ids) == (4, 1e-6, None, ())
    assert parse_spec(without(LLAMA, "max_position_embeddings")).max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("config", "biases"),
    [
        (llama(attention_bias=True), (True, True, False)),
        (llama(mlp_bias=True), (False, False, True)),
        (qwen("qwen2"), (True, False, False)),
        (qwen("qwen3", head_dim=32), (False, False, False)),
        (qwen("qwen3", attention_bias=True), (True, True, False)),
        (mistral(), (False, False, False)),
    ],
)
def test_biases_follow_the_family(config: JsonObject, biases: tuple[bool, bool, bool]) -> None:
    parsed = parse_spec(config)
    assert (parsed.attention.qkv_bias, parsed.attention.output_bias, dense(parsed).bias) == biases


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (mistral(sliding_window=24), (24, 24)),
        (mistral(sliding_window=None), (None, None)),
        (mistral(), (4096, 4096)),
        (llama(sliding_window=None), (None, None)),
        (qwen("qwen2", sliding_window=24, max_window_layers=1), (None, None)),
        (qwen("qwen2", use_sliding_window=True, sliding_window=24, max_window_layers=1), (None, 24)),
        (qwen("qwen2", use_sliding_window=True, sliding_window=24), (None, None)),
        (qwen("qwen3", use_sliding_window=True, sliding_window=None, max_window_layers=0), (None, None)),
        (
            qwen(
                "qwen3",
                use_sliding_window=True,
                sliding_window=24,
                layer_types=["sliding_attention", "full_attention"],
            ),
            (24, None),
        ),
    ],
)
def test_windows_follow_the_family(config: JsonObject, windows: tuple[int | None, ...]) -> None:
    assert windows_of(parse_spec(config)) == windows


def test_head_dim_may_differ_from_the_share_of_the_hidden_size() -> None:
    assert parse_spec(qwen("qwen3")).head_dim == 128
    assert parse_spec(qwen("qwen3", head_dim=24)).head_dim == 24
    assert parse_spec(mistral(head_dim=40)).head_dim == 40
    assert parse_spec(llama(head_dim=None)).head_dim == 16


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(5e5, None)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeConfig(5e5, None)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig(1e4, LinearScaling(2.0))),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, RopeConfig(1e4, None)),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 9}, "rope_theta": 5e5},
            RopeConfig(9, LinearScaling(2.0)),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
            RopeConfig(1e4, YarnScaling(4.0, 2048, 32.0, 1.0, True, None, None, None)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            RopeConfig(1e4, YarnScaling(4.0, 4096, 32.0, 1.0, True, None, None, None)),
        ),
    ],
)
def test_both_layouts_of_rope_options_are_read(fields: dict[str, Any], rope: RopeConfig) -> None:
    assert parse_spec(llama(**fields)).ropes == (rope,)


def test_the_context_of_a_yarn_model_is_the_extended_one() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert parse_spec(qwen("qwen2", rope_scaling=yarn)).max_context_tokens == 16_384
    longer = parse_spec(qwen("qwen2", rope_scaling=yarn, max_position_embeddings=20_000))
    assert longer.max_context_tokens == 20_000


def test_the_rope_digest_tells_options_apart() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    linear = {"rope_type": "linear", "factor": 4.0}
    configs = [llama(), llama(rope_theta=5e5), llama(rope_scaling=yarn), llama(rope_scaling=linear)]
    digests = [parse_spec(config).rope_digest(4096) for config in configs]
    assert len(set(digests)) == len(digests)
    assert digests[0] == parse_spec(llama(rope_parameters={"rope_type": "default"})).rope_digest(4096)
    assert all(len(digest) == 64 for digest in digests)


MIXTRAL: JsonObject = LLAMA | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
QWEN3_MOE: JsonObject = LLAMA | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}

GEMMA: JsonObject = LLAMA | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
PHI: JsonObject = LLAMA | {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
GLM4: JsonObject = LLAMA | {"model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "head_dim": 16}
OSS: JsonObject = LLAMA | {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 8}
GEMMA3: JsonObject = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
PHI_CODE = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}


def test_stop_ids_that_no_file_names_are_the_familys() -> None:
    large = {**GLM4, "vocab_size": 151_552}
    assert parse_spec(large).eos_token_ids == (151_329, 151_336, 151_338)
    assert parse_spec(GLM4).eos_token_ids == ()  # what the vocabulary has not ends nothing
    assert parse_spec({**GLM4, "eos_token_id": [4]}).eos_token_ids == (4,)
    assert parse_spec(GEMMA, {"eos_token_id": [1, 106]}).eos_token_ids == (1, 106)


def test_gemma_has_two_ropes_in_either_layout() -> None:
    old = parse_spec({**GEMMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    sections = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = parse_spec({**GEMMA, "rope_parameters": sections, "sliding_window_pattern": 2})
    assert old.ropes == (RopeConfig(1e4, None),)  # the first two layers are local
    assert new.ropes == (RopeConfig(1e4, None), RopeConfig(5e5, LinearScaling(8.0)))
    assert windows_of(new) == (4096, None)


def test_code_that_every_phi_checkpoint_brings_along_is_not_needed() -> None:
    with_tokenizer = {**PHI_CODE, "AutoTokenizer": "Xenova/gpt-4o"}
    of_a_copy = {key: f"microsoft/Phi-4-mini-instruct--{name}" for key, name in PHI_CODE.items()}
    for code in (PHI_CODE, with_tokenizer, of_a_copy):
        assert parse_spec({**PHI, "auto_map": code}).attention.qkv == ("qkv_proj",)


def test_the_language_model_of_a_model_for_images_has_the_defaults_of_transformers() -> None:
    spec = parse_spec({**GEMMA3, "torch_dtype": "float16", "eos_token_id": [1, 106]})
    assert (spec.family, spec.wrapper, spec.hidden_size, spec.num_layers) == ("gemma3_text", "gemma3", 2_304, 26)
    assert (spec.tied_head, spec.dtype, spec.eos_token_ids) == (True, "float16", (1, 106))
    untied = {**GEMMA3, "text_config": {"model_type": "gemma3_text", "tie_word_embeddings": False}}
    assert not parse_spec({**untied, "tie_word_embeddings": True}).tied_head
    assert parse_spec(GEMMA).wrapper is None


def test_attention_in_two_kinds_of_chunks_is_plain_within_the_first() -> None:
    chunks = {"chunk_size": 262_144, "local_size": 8_192, "original_max_position_embeddings": 262_144}
    long = qwen("qwen2", max_position_embeddings=1_010_000, dual_chunk_attention_config=chunks)
    assert parse_spec(long).max_context_tokens == 262_144 - 8_192


def test_long_and_short_contexts_of_longrope_never_mix() -> None:
    spec = parse_spec({**PHI, "rope_scaling": LONGROPE, "original_max_position_embeddings": 1024})
    assert spec.rope_digest(1024) != spec.rope_digest(1025) == spec.rope_digest(4096)


BAD: list[tuple[str, JsonObject, str]] = [
    ("capped scores", GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50"),
    ("both directions", GEMMA | {"use_bidirectional_attention": True}, "use_bidirectional_attention: true"),
    ("silu in gemma", GEMMA | {"hidden_activation": "silu"}, 'hidden_activation: "silu".*gelu_pytorch_tanh'),
    ("an image model of another name", GEMMA | {"model_type": "gemma3"}, "architectures.*Gemma3ForConditional"),
    ("an image model without text", GEMMA3 | {"text_config": None}, "text_config: is missing; allowed: an object"),
    ("another language model", GEMMA3 | {"text_config": {"model_type": "llama"}}, 'text_config.model_type: "llama"'),
    (
        "a wrong value of the language model",
        GEMMA3 | {"text_config": {"model_type": "gemma3_text", "hidden_size": 0}},
        "text_config.hidden_size: 0",
    ),
    ("code besides a language model", GEMMA3 | {"auto_map": {"AutoConfig": "evil.Config"}}, "auto_map.*never run"),
    ("code of another repository", PHI | {"auto_map": {"AutoConfig": "a/b--evil.Config"}}, "auto_map.*never run"),
    ("dynamic rope in phi", PHI | {"rope_scaling": {"type": "dynamic", "factor": 2}}, 'rope_scaling.type: "dynamic"'),
    (
        "two kinds of chunks, one empty",
        llama(dual_chunk_attention_config={"chunk_size": 64, "local_size": 64}),
        "dual_chunk_attention_config.chunk_size: 64 .* from 65",
    ),
    ("a rope of a third kind", GEMMA | {"rope_parameters": {"full_attention": {}, "x": {}}}, "rope_parameters.x"),
    ("no local window", GEMMA | {"sliding_window": None}, "sliding_window"),
    ("zero scale", GEMMA | {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: 0"),
    ("other code", PHI | {"auto_map": {"AutoConfig": "evil.Config"}}, "auto_map.*never run"),
    ("yarn in phi", PHI | {"rope_scaling": {"type": "yarn", "factor": 2}}, 'rope_scaling.type: "yarn".*longrope'),
    ("factors of another head", PHI | {"rope_scaling": LONGROPE | {"long_factor": [1.0]}}, "long_factor: has 1 .*8"),
    ("negative factor", PHI | {"rope_scaling": LONGROPE | {"long_factor": [-1.0] * 8}}, "rope_scaling.long_factor"),
    ("no factors", PHI | {"rope_scaling": {"type": "longrope"}}, "rope_scaling.short_factor"),
    ("an odd rotation", PHI | {"partial_rotary_factor": 0.2}, "partial_rotary_factor: 0.2 .*even"),
    ("more than the head", PHI | {"partial_rotary_factor": 1.5}, "partial_rotary_factor: 1.5"),
    ("window in glm", GLM4 | {"sliding_window": 64}, "sliding_window: 64"),
    ("more experts a token", OSS | {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 .* 1 to 8"),
    ("negative clamp", OSS | {"swiglu_limit": -7.0}, "swiglu_limit: -7"),
    ("one layer type too few", OSS | {"layer_types": ["full_attention"]}, "layer_types.*2 entries"),
    ("unknown family", llama(model_type="gpt2"), r"model_type: \"gpt2\".*llama, mistral, ministral3, qwen2, qwen3"),
    ("no family", without(LLAMA, "model_type"), "model_type: is missing|model_type.*string"),
    ("unknown mixture of experts", llama(model_type="deepseek_v3"), 'model_type: "deepseek_v3"'),
    ("more experts a token than there are", MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 .* 1 to 8"),
    ("noise at the router", MIXTRAL | {"router_jitter_noise": 0.1}, "router_jitter_noise: 0.1"),
    ("dense layer of none", QWEN3_MOE | {"mlp_only_layers": [2]}, r"mlp_only_layers: \[2\].* from 0 to 1"),
    ("windows of some layers", QWEN3_MOE | {"layer_types": ["full_attention"]}, "layer_types"),
    (
        "not a language model",
        llama(architectures=["LlamaForTokenClassification"]),
        "architectures.*LlamaForCausalLM",
    ),
    ("custom code", llama(auto_map={"AutoModel": "evil.Model"}), "auto_map.*never run"),
    ("quantised", llama(quantization_config={"bits": 4}), r"quantization_config\.quant_method: is missing.*gptq"),
    ("another activation", llama(hidden_act="gelu"), 'hidden_act: "gelu".*allowed: silu'),
    ("missing size", without(LLAMA, "hidden_size"), "hidden_size: is missing"),
    ("missing kv heads", without(mistral(), "num_key_value_heads"), "num_key_value_heads: is missing"),
    ("missing length", without(qwen("qwen2"), "max_position_embeddings"), "max_position_embeddings: is missing"),
    ("text for a number", llama(vocab_size="128"), 'vocab_size: "128".*an integer'),
    ("true for a number", llama(vocab_size=True), "vocab_size: true.*an integer"),
    ("fraction for a number", llama(num_hidden_layers=2.5), "num_hidden_layers: 2.5"),
    ("no layers", llama(num_hidden_layers=0), "num_hidden_layers: 0.*from 1"),
    ("too many layers", llama(num_hidden_layers=10_000), "num_hidden_layers: 10000.*to 1024"),
    ("negative size", llama(intermediate_size=-96), "intermediate_size: -96"),
    ("uneven groups", llama(num_key_value_heads=3), r"num_key_value_heads: 3.*divisor of num_attention_heads \(4\)"),
    (
        "uneven heads",
        llama(num_attention_heads=3, num_key_value_heads=3),
        r"num_attention_heads: 3.*hidden_size \(64\)",
    ),
    ("odd head", llama(head_dim=17), "head_dim: 17.*even"),
    ("zero eps", llama(rms_norm_eps=0), "rms_norm_eps: 0"),
    ("text for a flag", llama(tie_word_embeddings="yes"), 'tie_word_embeddings: "yes".*true or false'),
    ("bias in mistral", mistral(attention_bias=True), "attention_bias: true.*false for this model_type"),
    ("no bias in qwen2", qwen("qwen2", attention_bias=False), "attention_bias: false.*true for this model_type"),
    ("mlp bias in qwen3", qwen("qwen3", mlp_bias=True), "mlp_bias: true"),
    ("window in llama", llama(sliding_window=24), "sliding_window: 24.*absent"),
    ("zero window", mistral(sliding_window=0), "sliding_window: 0"),
    ("layer types in mistral", mistral(layer_types=["full_attention"] * 2), "layer_types"),
    ("unknown layer type", qwen("qwen3", layer_types=["full_attention", "linear_attention"]), "layer_types.*2 entries"),
    ("layer types of another depth", qwen("qwen3", layer_types=["full_attention"]), "layer_types.*2 entries"),
    ("window without size", qwen("qwen2", layer_types=["sliding_attention"] * 2), "layer_types.*use_sliding_window"),
    (
        "long rope with its factors",
        llama(rope_scaling={"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}),
        r"rope_scaling.type: \"longrope\" is not supported; allowed: default, linear, dynamic, llama3, yarn",
    ),
    ("long rope", llama(rope_scaling={"rope_type": "longrope"}), r"rope_scaling.rope_type: \"longrope\".*llama3"),
    (
        "rope of a vision model",
        llama(rope_scaling={"type": "default", "mrope_section": [1]}),
        "rope_scaling.mrope_section",
    ),
    ("unknown rope", llama(rope_parameters={"rope_type": "axial"}), r"rope_parameters.rope_type: \"axial\""),
    (
        "rope per layer type",
        qwen("qwen3", rope_parameters={"full_attention": {"rope_type": "yarn"}}),
        "rope_parameters.full",
    ),
    ("rope without factor", llama(rope_scaling={"type": "linear"}), "rope_scaling.factor: is missing"),
    ("infinite factor", llama(rope_scaling={"type": "linear", "factor": float("inf")}), "rope_scaling.factor"),
    (
        "llama3 without its factors",
        llama(rope_scaling={"rope_type": "llama3", "factor": 8}),
        "low_freq_factor: is missing",
    ),
    (
        "llama3 frequencies the wrong way round",
        llama(rope_scaling={"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}),
        r"high_freq_factor: 0.5.*below low_freq_factor \(1\)",
    ),
    ("rope scaling as text", llama(rope_scaling="linear"), 'rope_scaling: "linear".*an object'),
    (
        "two different rope options",
        llama(rope_scaling={"type": "linear", "factor": 2}, rope_parameters={"rope_type": "default"}),
        "rope_scaling.*one of the two",
    ),
    ("partial rotation", llama(partial_rotary_factor=0.5), "partial_rotary_factor: 0.5"),
    (
        "partial rotation inside",
        llama(rope_parameters={"partial_rotary_factor": 0.5}),
        "rope_parameters.partial_rotary",
    ),
    ("negative base", llama(rope_theta=-1), "rope_theta: -1"),
    ("eight-bit dtype", llama(torch_dtype="int8"), 'torch_dtype: "int8".*bfloat16'),
    ("text for a stop id", llama(eos_token_id="</s>"), "eos_token_id"),
    ("negative stop id", llama(eos_token_id=[2, -1]), "eos_token_id"),
]


@pytest.mark.parametrize(("config", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_would_be_computed_wrongly_is_refused(config: JsonObject, message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        parse_spec(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "must hold a JSON object, not list"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"vocab_size": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_broken_config_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelConfigError, match=message):
        read_spec(tmp_path)


def test_a_missing_or_huge_config_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json: cannot be read: No such file"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (16 << 20) + b"{}")
    with pytest.raises(ModelConfigError, match="more than the allowed"):
        read_spec(tmp_path)


def test_stop_ids_of_the_generation_config_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama(eos_token_id=2)))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    assert read_spec(tmp_path).eos_token_ids == (2, 3)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2.5]}))
    with pytest.raises(ModelConfigError, match=r"generation_config\.eos_token_id"):
        read_spec(tmp_path)
