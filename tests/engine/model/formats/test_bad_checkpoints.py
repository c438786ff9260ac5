"""Quantised checkpoints that are wrong: one line that names the tensor or the field, or the right answer. Never another
exception, never another answer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model.errors import WeightsError
from baton_engine.model.loading import load_model
from baton_testing.engine import quantised_models as written
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.spoilt_checkpoints import (
    Case,
    Config,
    Q,
    Tensors,
    assert_named,
    first,
    kept,
    missing,
    of_bytes,
    put,
    set_fields,
    sources_of,
    weights,
)
from baton_wire.models.errors import ModelConfigError, ModelError

CPU = torch.device("cpu")
TOKENS = list(range(3, 20))
FORMS = {
    "fp8": written.fp8("channel"),
    "block": written.fp8("block"),
    "packed": written.packed(4, 32, symmetric=False),
    "gptq": written.gptq(4, 32, False, by_order=True),
    "awq": written.awq(32),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sources_of(FORMS, tmp_path_factory.mktemp("bad"))


CASES: list[Case] = [
    ("scale missing", "fp8", kept, missing("weight_scale"), WeightsError, f"missing tensors: {Q}.weight_scale"),
    ("scale zero", "fp8", kept, put("weight_scale", first(0)), WeightsError, f"tensor {Q}.weight_scale: holds 0;"),
    (
        "scale NaN",
        "block",
        kept,
        put("weight_scale_inv", first(float("nan"))),
        WeightsError,
        "weight_scale_inv: holds an",
    ),
    ("scale negative", "awq", kept, put("scales", first(-1)), WeightsError, f"tensor {Q}.scales: holds -1; allowed"),
    (
        "weight NaN",
        "fp8",
        kept,
        put("weight", of_bytes(127)),
        WeightsError,
        f"tensor {Q}.weight: holds values that are no numbers",
    ),
    (
        "group size of another",
        "awq",
        set_fields(group_size=16),
        kept,
        WeightsError,
        r"scales: shape \[2, 64\].*\[4, 64\]",
    ),
    (
        "group size of none",
        "gptq",
        set_fields(group_size=48),
        kept,
        ModelConfigError,
        r"quantization_config.group_size: 48",
    ),
    (
        "group size too large",
        "packed",
        weights(group_size=128),
        kept,
        ModelConfigError,
        "q_proj.weight: 64 columns do not",
    ),
    (
        "ignore names nothing",
        "fp8",
        set_fields(ignore=["model.vision"]),
        kept,
        ModelConfigError,
        "'model.vision' names no",
    ),
    (
        "pattern that never ends",
        "fp8",
        set_fields(ignore=["re:(a+)+b"]),
        kept,
        ModelConfigError,
        "not supported; allowed",
    ),
    (
        "truncated words",
        "packed",
        kept,
        put("weight_packed", lambda t: t[:, :-1]),
        WeightsError,
        "weight_packed: shape",
    ),
    (
        "another shape said",
        "packed",
        kept,
        put("weight_shape", first(32)),
        WeightsError,
        r"weight_shape: says \[32, 64\]",
    ),
    ("zero point of 16", "gptq", kept, put("qzeros", first(-1)), WeightsError, "qzeros: holds a zero point of 16"),
    ("columns in odd groups", "gptq", kept, put("g_idx", lambda t: t * 0), WeightsError, "g_idx: places columns"),
    ("columns in groups below 0", "gptq", kept, put("g_idx", first(-1)), WeightsError, "g_idx: places columns"),
    (
        "an order of columns that is missing",
        "gptq",
        kept,
        missing("g_idx"),
        WeightsError,
        f"missing tensors: {Q}.g_idx",
    ),
    ("unknown method", "fp8", set_fields(quant_method="hqq"), kept, ModelConfigError, 'quant_method: "hqq".*gptq'),
    ("NVFP4", "packed", set_fields(format="nvfp4-pack-quantized"), kept, ModelConfigError, "nvfp4-pack-quantized"),
    ("3 bits", "gptq", set_fields(bits=3), kept, ModelConfigError, "quantization_config.bits: 3 .* 4 or 8"),
    ("4-bit floats", "fp8", weights(num_bits=4), kept, ModelConfigError, "group_0.weights.num_bits: 4"),
    ("rotated weights", "fp8", set_fields(transform_config={"u": 1}), kept, ModelConfigError, "transform_config"),
    ("marlin's layout", "awq", set_fields(version="marlin"), kept, ModelConfigError, "quantization_config.version"),
    ("no groups", "fp8", set_fields(config_groups={}), kept, ModelConfigError, "config_groups: {}"),
    (
        "other blocks",
        "block",
        set_fields(weight_block_size=[64, 64]),
        kept,
        ModelConfigError,
        r"weight_block_size: \[64, 64\]",
    ),
    (
        "dense weight",
        "fp8",
        kept,
        put("weight", lambda t: t.float()),
        WeightsError,
        "weight: has dtype F32; allowed: F8_E4M3",
    ),
    (
        "a bias that no layer has",
        "gptq",
        kept,
        lambda tensors: tensors.update({f"{Q}.bias": torch.ones(64)}),
        WeightsError,
        f"tensor {Q}.bias: is not zero; .* no such bias",
    ),
    (
        "zeros for a bias of another format",
        "awq",
        kept,
        lambda tensors: tensors.update({f"{Q}.bias": torch.zeros(64)}),
        WeightsError,
        f"does not have: {Q}.bias",
    ),
    (
        "a layer to leave that is none",
        "awq",
        set_fields(modules_to_not_convert=["w9"]),
        kept,
        ModelConfigError,
        "quantization_config.modules_to_not_convert: 'w9'",
    ),
    (
        "targets that mean nothing",
        "fp8",
        lambda config: config["config_groups"]["group_0"].update(targets=["re:.*w9$"]),
        kept,
        ModelConfigError,
        r"targets: 're:\.\*w9\$' names no layer",
    ),
    (
        "overrides that are no object",
        "gptq",
        set_fields(dynamic={"+:.*": 3}),
        kept,
        ModelConfigError,
        r"quantization_config\.dynamic\.\+:\.\*: 3 .* an object",
    ),
    (
        "an override of 3 bits",
        "gptq",
        set_fields(dynamic={".*": {"bits": 3}}),
        kept,
        ModelConfigError,
        "bits: 3 .*4 or 8",
    ),
    (
        "an override that never ends",
        "gptq",
        set_fields(dynamic={"-:(a+)+b": {}}),
        kept,
        ModelConfigError,
        "dynamic: 're:\\(a\\+\\)\\+b' is not supported",
    ),
    ("words of 16 bits", "gptq", set_fields(pack_dtype="int16"), kept, ModelConfigError, 'pack_dtype: "int16".*int32'),
    (
        "blocks by number",
        "gptq",
        set_fields(modules_in_block_to_quantize="self_attn.q_proj"),
        kept,
        ModelConfigError,
        "modules_in_block_to_quantize: .* a list of names",
    ),
    # One line each; what it says begins with the tensor or the field.
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_what_is_wrong_is_named(case: Case, sources: dict[str, Path], tmp_path: Path) -> None:
    assert_named(case, sources, tmp_path / "model")


STRANGE: list[object] = [None, -1, 0, 3, 17, 1e9, "", "re:", "x" * 300, [], ["lm_head", 3], {}, {"a": {}}, True, False]


def mutate(drawn: random.Random, config: Config, tensors: Tensors) -> None:
    """One field anywhere in the section, or one stored tensor."""
    if drawn.random() < 0.5:
        places: list[tuple[Config, str]] = []
        open_sections: list[Config] = [config]
        while open_sections:
            section = open_sections.pop()
            places += [(section, key) for key in section]
            open_sections += [value for value in section.values() if isinstance(value, dict)]
        section, key = drawn.choice(places)
        if drawn.random() < 0.2:
            del section[key]
        else:
            section[key] = drawn.choice(STRANGE)
        return
    name = drawn.choice(sorted(name for name in tensors if "_proj" in name))
    tensor = tensors[name]
    match drawn.randrange(7):
        case 0:
            del tensors[name]
        case 1:
            tensors[name + "x"] = tensors.pop(name)
        case 2:
            tensors[name] = tensor.flatten()
        case 3:
            tensors[name] = tensor[..., :-1] if tensor.dim() else tensor[None].expand(3)
        case 4:
            tensors[name] = torch.zeros(tensor.shape, dtype=drawn.choice([torch.int8, torch.float32, torch.int64]))
        case 5:
            tensors[name] = torch.cat((tensor, tensor)) if tensor.dim() else tensor[None]
        case 6:
            tensors[name] = tensor[:0]


@pytest.mark.parametrize("form", FORMS)
def test_mutated_checkpoints_are_refused_or_mean_the_same(form: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """90 of each form. Zeroed codes are weights like any others: not counted as mutations that must be noticed."""
    right = ModelSteps(load_model(sources[form], torch.float32, CPU)).prefill(chunk(0, TOKENS))
    drawn = random.Random(form)
    refused = 0
    for number in range(90):
        original = load_file(sources[form] / "model.safetensors")
        config = json.loads((sources[form] / "config.json").read_text())
        tensors = dict(original)
        mutate(drawn, config["quantization_config"], tensors)
        changed = [name for name in tensors if name in original and not same(tensors[name], original[name])]
        if any(tensors[name].dtype == original[name].dtype and not tensors[name].any() for name in changed):
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
        try:
            loaded = load_model(directory, torch.float32, CPU)
        except ModelError as error:
            refused += "\n" not in str(error)
        else:
            torch.testing.assert_close(ModelSteps(loaded).prefill(chunk(0, TOKENS)), right, rtol=0, atol=1e-4)
    assert refused > 30


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return (
        torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)) if left.dim() else True
    )
