"""The tensors of a checkpoint as one rank of several reads them: its slice of each, with the slice's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from baton_engine.collectives.collective import RankShare
from baton_engine.model.blank_weights import DTYPES
from baton_engine.model.errors import WeightsError
from baton_engine.model.tensor_headers import TensorHeader
from baton_engine.model.weights import SlicedSource, WeightSource
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.formats.weight_format import Shape
from baton_wire.models.sharding.tensor_parts import StatedShape, TensorPart, TensorSlice, ZeroTensor, tensor_parts


class ShardedWeights:
    """The parts of a source's (already checked) tensors that one rank holds."""

    def __init__(self, source: SlicedSource, config: DecoderSpec, share: RankShare) -> None:
        """`config`: of the whole model. The degree is one that the model allows."""
        self._source = source
        self._parts = tensor_parts(config, source.headers.keys(), share.rank, share.ranks)
        self.headers: Mapping[str, TensorHeader] = {
            name: _part_header(header, self._parts.get(name)) for name, header in source.headers.items()
        }

    def read(self, name: str) -> Tensor:
        match self._parts.get(name):
            case None:
                return self._source.read(name)
            case TensorSlice() as part:
                return self._source.read_slice(name, part)
            case ZeroTensor():
                header = self.headers[name]
                return torch.zeros(header.shape, dtype=DTYPES[header.dtype])
            case StatedShape(whole, own):
                stated = self._source.read(name).tolist()
                if stated != list(whole):
                    raise WeightsError(f"tensor {name}: says {stated}; the config asks for {list(whole)}")
                return torch.tensor(own)


def shard_weights(source: SlicedSource, config: DecoderSpec, share: RankShare) -> WeightSource:
    """The parts that a rank holds of a source's (already checked) tensors; with one rank the source itself."""
    return source if share.ranks == 1 else ShardedWeights(source, config, share)


def _part_header(header: TensorHeader, part: TensorPart | None) -> TensorHeader:
    if not isinstance(part, TensorSlice):
        return header
    shape: Shape = (*header.shape[: part.axis], sum(map(len, part.ranges)), *header.shape[part.axis + 1 :])
    return replace(header, shape=shape)
