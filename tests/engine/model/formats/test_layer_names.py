"""Which layers the lists of quantisation configs mean, as the tools that write them read their own."""

from __future__ import annotations

import pytest

from baton_wire.models.config_fields import ConfigFields, JsonObject
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.compressed_tensors import read_compressed_tensors
from baton_wire.models.formats.layer_names import LayerNames, Matching, layer_names

GATE = "model.layers.1.mlp.experts.3.gate_proj"
MODULES = ["model.layers.1.mlp.gate", "model.layers.11.self_attn.q_proj", "model.norm", "lm_head", GATE]


@pytest.mark.parametrize(
    ("given", "matching", "meant"),
    [
        (
            ["Linear"],
            Matching.WHOLE,
            ["model.layers.1.mlp.gate", "model.layers.11.self_attn.q_proj", "model.norm", GATE],
        ),
        (["model.layers.1"], Matching.WHOLE, ["model.layers.1.mlp.gate", GATE]),
        (["q_proj"], Matching.WHOLE, []),
        (["q_proj"], Matching.TAIL, ["model.layers.11.self_attn.q_proj"]),
        (["mlp.gate"], Matching.TAIL, ["model.layers.1.mlp.gate"]),
        (["proj"], Matching.TAIL, []),
        (["gate"], Matching.PART, ["model.layers.1.mlp.gate", GATE]),
        (["re:.*mlp.gate$"], Matching.WHOLE, ["model.layers.1.mlp.gate"]),
        (["re:mlp"], Matching.WHOLE, []),
        (["re:language_model.*gate"], Matching.WHOLE, ["model.layers.1.mlp.gate", GATE]),
        (["language_model.lm_head"], Matching.WHOLE, ["lm_head"]),
        (["model.language_model.layers.1.mlp.gate"], Matching.WHOLE, ["model.layers.1.mlp.gate"]),
        (["vision_tower.layers.1", "re:visual.*"], Matching.WHOLE, []),
        (["model.layers.*.mlp.gate", "*lm_head"], Matching.WILDCARD, ["model.layers.1.mlp.gate", "lm_head"]),
        (["model.layers.1*"], Matching.WILDCARD, [*MODULES[:2], GATE]),
    ],
)
def test_a_list_means_these_layers(given: list[str], matching: Matching, meant: list[str]) -> None:
    names = layer_names(given, matching, "ignore")
    assert [module for module in MODULES if names.mean(module)] == meant


@pytest.mark.parametrize(
    ("given", "matching", "unknown"),
    [
        (["model.layers.1.mlp", "lm_head"], Matching.WHOLE, None),
        (["mlp.gate"], Matching.WHOLE, "mlp.gate"),
        (["mlp.gate", "experts"], Matching.TAIL, None),
        (["gates"], Matching.PART, "gates"),
        (["re:.*shared_expert.*", "multi_modal_projector"], Matching.WHOLE, None),
        (["*.router"], Matching.WILDCARD, None),
    ],
)
def test_a_name_of_no_module_is_noticed_and_a_pattern_is_not(
    given: list[str], matching: Matching, unknown: str | None
) -> None:
    assert layer_names(given, matching, "ignore").unknown(MODULES) == unknown


@pytest.mark.parametrize(
    ("name", "matching"),
    [
        ("", Matching.WHOLE),
        ("re:", Matching.WHOLE),
        ("re:(a+)+b", Matching.WHOLE),
        ("re:(", Matching.WHOLE),
        ("*" * 9, Matching.WILDCARD),
        ("[a*", Matching.WILDCARD),
    ],
)
def test_what_could_match_for_long_is_refused(name: str, matching: Matching) -> None:
    with pytest.raises(ModelConfigError, match=r"quantization_config\.ignore: .* is not supported; allowed: simple"):
        layer_names([name], matching, "ignore")


def test_two_lists_mean_the_layers_of_both() -> None:
    both = layer_names(["lm_head"], Matching.WHOLE, "a") | layer_names(["norm"], Matching.TAIL, "b")
    assert [module for module in MODULES if both.mean(module)] == ["model.norm", "lm_head"]
    assert LayerNames().unknown(MODULES) is None


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_groups_of_compressed_tensors_the_most_exact_decides(turned: bool) -> None:
    """Whatever their order: a whole name, then patterns as their letters sort, then the class."""
    targets = {
        16: ["Linear"],
        32: ["re:.*mlp.*"],
        64: ["re:.*down_proj", "re:model.*o_proj$"],
        128: ["model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj"],
    }
    groups = {
        f"group_{group}": {
            "targets": names,
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group},
        }
        for group, names in sorted(targets.items(), reverse=turned)
    }
    section: JsonObject = {
        "format": "pack-quantized",
        "config_groups": groups,
        "ignore": ["lm_head", "re:.*layers.9.*"],
    }
    formats = read_compressed_tensors(ConfigFields(section, "quantization_config."))

    def group_of(layer: str) -> object:
        stored = formats.of(f"model.layers.{layer}")
        return None if stored is None else getattr(stored, "group")  # noqa: B009  (not every format has one)

    layers = ["0.self_attn.q_proj", "0.self_attn.o_proj", "0.mlp.up_proj", "1.mlp.down_proj", "9.mlp.down_proj"]
    assert [group_of(layer) for layer in layers] == [16, 64, 32, 64, None]
    assert [group_of(layer) for layer in ("0.mlp.down_proj", "1.self_attn.q_proj")] == [128, 128]
    assert formats.of("lm_head") is None


def test_of_equal_targets_of_compressed_tensors_the_last_holds() -> None:
    groups = {
        str(bits): {"targets": ["Linear"], "weights": {"num_bits": bits, "strategy": "channel"}} for bits in (4, 8)
    }
    section: JsonObject = {"format": "pack-quantized", "config_groups": groups}
    stored = read_compressed_tensors(ConfigFields(section)).of("model.layers.0.mlp.up_proj")
    assert stored is not None
    assert stored.bits == 8
