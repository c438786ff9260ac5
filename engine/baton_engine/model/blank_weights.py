"""A model without memory: its tensors have shapes and types alone, enough to go through what it would launch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from baton_engine.model.assembly import assemble
from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.decoder import Decoder
from baton_engine.model.tensor_headers import TensorHeader
from baton_engine.model.weights import check_parameters, open_safetensors, served_tensors
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.parameters import expected_tensors

DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip


class BlankWeights:
    """Empty tensors with the shapes and types of a checkpoint."""

    def __init__(self, headers: Mapping[str, TensorHeader], device: torch.device) -> None:
        self.headers = headers
        self._device = device

    def read(self, name: str) -> Tensor:
        header = self.headers[name]
        return torch.empty(header.shape, dtype=DTYPES[header.dtype], device=self._device)


def blank_model(
    directory: Path, config: DecoderSpec, dtype: torch.dtype, device: torch.device, context: int
) -> Decoder:
    """The decoder on a device without memory. Shapes and types come from the headers of the directory's weights, or,
    without weights, from config.json. Raises ModelError."""
    return assemble(config, BlankWeights(_headers(directory, config), device), dtype, device, context)


def _headers(directory: Path, config: DecoderSpec) -> Mapping[str, TensorHeader]:
    if any(directory.glob("*.safetensors")):
        with open_safetensors(find_checkpoint(directory)) as opened:
            source = served_tensors(opened, config)
            check_parameters(source, config)
            return dict(source.headers)
    forms = expected_tensors(config).items()
    return {name: TensorHeader(form.shapes[0], form.dtypes[0]) for name, form in forms if not form.optional}
