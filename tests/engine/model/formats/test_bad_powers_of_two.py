"""Checkpoints whose scales are powers of two, spoilt: one line that names the tensor or the field."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_engine.model.errors import WeightsError
from baton_testing.engine import quantised_models as written
from baton_testing.engine.spoilt_checkpoints import (
    Case,
    Q,
    assert_named,
    first,
    kept,
    of_bytes,
    put,
    set_fields,
    sources_of,
    weights,
)
from baton_wire.models.errors import ModelConfigError

FORMS = {
    "fp8": written.fp8("channel"),
    "block": written.fp8("block"),
    "mxfp4": written.powers("mxfp4"),
    "mxfp8": written.powers("mxfp8"),
    "modelopt": written.powers("modelopt"),
    "powers": written.powers("blocks"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sources_of(FORMS, tmp_path_factory.mktemp("powers"))


CASES: list[Case] = [
    (
        "an exponent that is no number",
        "powers",
        kept,
        put("weight_scale_inv", of_bytes(255)),
        WeightsError,
        f"tensor {Q}.weight_scale_inv: holds 255, which is no number; allowed: 0 to 246$",
    ),
    (
        "an exponent too large",
        "powers",
        kept,
        put("weight_scale_inv", of_bytes(247)),
        WeightsError,
        "weight_scale_inv: holds 247, which makes e4m3 infinite; allowed: 0 to 246$",
    ),
    (
        "an exponent of a byte that is no number",
        "mxfp8",
        kept,
        put("weight_scale", first(255)),
        WeightsError,
        f"tensor {Q}.weight_scale: holds 255, which is no number",
    ),
    (
        "an exponent of four bits too large",
        "mxfp4",
        kept,
        put("weight_scale", first(253)),
        WeightsError,
        "weight_scale: holds 253, which makes e2m1 infinite; allowed: 0 to 252$",
    ),
    (
        "exponents of another shape",
        "mxfp4",
        kept,
        put("weight_scale", lambda t: t[:, :1]),
        WeightsError,
        rf"tensor {Q}.weight_scale: shape \[64, 1\] does not fit .*\[64, 2\]",
    ),
    (
        "codes of another shape",
        "mxfp4",
        kept,
        put("weight_packed", lambda t: t[:-1]),
        WeightsError,
        "weight_packed: sh",
    ),
    (
        "floats for exponents",
        "mxfp8",
        kept,
        put("weight_scale", torch.Tensor.float),
        WeightsError,
        "allowed: U8, F8_E8M0",
    ),
    (
        "bytes that nothing calls exponents",
        "powers",
        set_fields(scale_fmt="float"),
        put("weight_scale_inv", lambda t: t.view(torch.uint8)),
        WeightsError,
        "weight_scale_inv: has dtype U8; allowed: F32, BF16, F16, F8_E8M0",
    ),
    (
        "exponents where the tool writes floats",
        "fp8",
        kept,
        put("weight_scale", lambda t: t.to(torch.float8_e8m0fnu)),
        WeightsError,
        "weight_scale: has dtype F8_E8M0; allowed: F32",
    ),
    ("another form of scales", "powers", set_fields(scale_fmt="ue4m3"), kept, ModelConfigError, 'scale_fmt: "ue4m3"'),
    (
        "small blocks of floats",
        "block",
        set_fields(weight_block_size=[1, 32]),
        kept,
        ModelConfigError,
        "weight_block_size: .*with scale_fmt ue8m0",
    ),
    ("experts of four bits", "powers", set_fields(expert_dtype="fp4"), kept, ModelConfigError, 'expert_dtype: "fp4"'),
    ("MX of other groups", "mxfp8", weights(group_size=64), kept, ModelConfigError, "group_size: 64 .*32 for mxfp8"),
    ("MX of other bits", "mxfp4", weights(num_bits=8), kept, ModelConfigError, "num_bits: 8 .*4 for mxfp4"),
    ("MX of integers", "mxfp4", weights(type="int"), kept, ModelConfigError, "weights.type: .*float for mxfp4"),
    ("MX of channels", "mxfp8", weights(strategy="channel"), kept, ModelConfigError, "strategy: .*group for mxfp8"),
    ("MX with zeros", "mxfp4", weights(symmetric=False), kept, ModelConfigError, "symmetric: false"),
    ("MX of six bits", "mxfp4", set_fields(format="mxfp6-pack-quantized"), kept, ModelConfigError, "mxfp6"),
    (
        "scales of floats said",
        "mxfp4",
        weights(scale_dtype="torch.float8_e4m3fn"),
        kept,
        ModelConfigError,
        "scale_dtype: .*torch.uint8",
    ),
    (
        "MX of NVIDIA's other groups",
        "modelopt",
        set_fields(group_size=16),
        kept,
        ModelConfigError,
        "group_size: 16 .*32",
    ),
    (
        "NVIDIA's NVFP4",
        "modelopt",
        set_fields(quant_algo="NVFP4"),
        kept,
        ModelConfigError,
        "quant_algo: .*FP8 or MXFP8",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_what_is_wrong_is_named(case: Case, sources: dict[str, Path], tmp_path: Path) -> None:
    assert_named(case, sources, tmp_path / "model")
