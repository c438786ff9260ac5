"""The parts of tensors that ranks read: together they are the tensor, and one rank reads its own bytes alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from baton_engine.collectives.collective import RankShare
from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.errors import WeightsError
from baton_engine.model.sharded_weights import ShardedWeights
from baton_engine.model.tensor_headers import ELEMENT_BITS, TensorHeader
from baton_engine.model.weights import RandomWeights, open_safetensors
from baton_testing.published.configs import PUBLISHED
from baton_testing.published.quantised import QUANTISED
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.parameters import EMBEDDING, HEAD, expected_tensors
from baton_wire.models.parsing import parse_spec
from baton_wire.models.sharding.tensor_parts import TensorSlice, tensor_parts, vocabulary_part


class HeadersAlone:
    """A checkpoint of a config without its bytes; counts those that would be read."""

    def __init__(self, config: DecoderSpec) -> None:
        self.headers = {
            name: TensorHeader(form.shapes[0], form.dtypes[0])
            for name, form in expected_tensors(config).items()
            if not form.optional
        }
        self.bytes = 0

    def read(self, name: str) -> Tensor:
        return self._read(name, self.headers[name].shape)

    def read_slice(self, name: str, part: TensorSlice) -> Tensor:
        shape = list(self.headers[name].shape)
        shape[part.axis] = sum(map(len, part.ranges))
        return self._read(name, tuple(shape))

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        dtype = self.headers[name].dtype
        bits = 16 if dtype == "F32" and name.endswith(".weight") else ELEMENT_BITS[dtype]  # as checkpoints have them
        self.bytes += math.prod(shape) * bits // 8
        return torch.empty(shape, device="meta")


def config_of(name: str) -> DecoderSpec:
    if (quantised := QUANTISED.get(name)) is None:
        return parse_spec(PUBLISHED[name].config)
    base: dict[str, Any] = {**PUBLISHED[quantised.base].config, **quantised.fields}
    return parse_spec({**base, "quantization_config": quantised.section})


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize(("ranks", "share"), [(2, 0.52), (4, 0.28), (8, 0.16)])
@pytest.mark.parametrize("section", [None, FP8], ids=["bfloat16", "fp8"])
def test_a_rank_of_a_70b_model_reads_its_share_of_the_bytes(
    ranks: int, share: float, section: dict[str, Any] | None
) -> None:
    fields = dict(PUBLISHED[LLAMA_70B].config)
    config = parse_spec(fields if section is None else {**fields, "quantization_config": section})
    whole = HeadersAlone(config)
    for name in whole.headers:
        whole.read(name)
    for rank in range(ranks):
        own = HeadersAlone(config)
        weights = ShardedWeights(own, config, RankShare(rank, ranks))
        for name, header in weights.headers.items():
            assert weights.read(name).shape == header.shape
        assert own.bytes <= share * whole.bytes


CHECKPOINTS = [
    "meta-llama/Llama-3.1-8B-Instruct",
    "microsoft/Phi-3-mini-4k-instruct",  # qkv and gate_up in one tensor each
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
    "openai/gpt-oss-20b",
    "Llama-3.1-8B, W4A16 with act-order",
    "TheBloke/Llama-2-7B-Chat-GPTQ",
    "Llama-3.1-8B, GPTQ of the head too, a scale a channel",
    "Qwen/Qwen3-8B-AWQ",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parts_of_all_ranks_cover_each_tensor_once(name: str) -> None:
    config = config_of(name)
    config = replace(config, layers=config.layers[:2])
    source = HeadersAlone(config)
    by_rank = [tensor_parts(config, source.headers.keys(), rank, 2) for rank in range(2)]
    cut = 0
    for tensor, header in source.headers.items():
        parts = [parts[tensor] for parts in by_rank if isinstance(parts.get(tensor), TensorSlice)]
        if not parts:
            continue
        axes = {part.axis for part in parts if isinstance(part, TensorSlice)}
        assert len(axes) == 1
        entries = [at for part in parts if isinstance(part, TensorSlice) for rows in part.ranges for at in rows]
        assert sorted(entries) == list(range(header.shape[axes.pop()])), tensor
        cut += 1
    assert cut >= 9


def test_heads_that_several_ranks_hold_are_read_by_each() -> None:
    config = config_of("meta-llama/Llama-3.1-8B-Instruct")
    mixer = replace(config.attention, kv_heads=2)
    config = replace(config, layers=(replace(config.layers[0], mixer=mixer),))
    names = HeadersAlone(config).headers.keys()
    rows = [tensor_parts(config, names, rank, 8)["model.layers.0.self_attn.k_proj.weight"] for rank in range(8)]
    assert rows == [TensorSlice(0, (range(0, 128),))] * 4 + [TensorSlice(0, (range(128, 256),))] * 4


@pytest.mark.parametrize("vocabulary", [1, 5, 8, 199, 128_256])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_vocabulary_parts_are_the_whole_vocabulary_in_order(vocabulary: int, ranks: int) -> None:
    config = replace(config_of("meta-llama/Llama-3.1-8B-Instruct"), vocab_size=vocabulary)
    parts = [vocabulary_part(config, rank, ranks) for rank in range(ranks)]
    length = len(parts[0])
    assert all(0 < len(part) <= length for part in parts)
    gathered = [token for part in parts for token in [*part, *([-1] * (length - len(part)))]]
    assert gathered[:vocabulary] == list(range(vocabulary))


def test_a_quantised_head_is_shared_out_on_its_block_borders() -> None:
    config = config_of("Llama-3.1-8B, GPTQ of the head too, a scale a channel")
    config = replace(config, vocab_size=200)
    parts = [vocabulary_part(config, rank, 3) for rank in range(3)]
    assert parts == [range(72), range(72, 144), range(144, 200)]


def test_slices_of_a_file_are_those_of_its_tensors(tmp_path: Path) -> None:
    config = config_of("microsoft/Phi-3-mini-4k-instruct")
    small = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 24}
    small |= {"vocab_size": 31, "num_hidden_layers": 1, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    config = parse_spec({**PUBLISHED["microsoft/Phi-3-mini-4k-instruct"].config, **small})
    drawn = RandomWeights(config, 1)
    save_file({name: drawn.read(name) for name in drawn.headers}, tmp_path / "model.safetensors")
    with open_safetensors(find_checkpoint(tmp_path)) as opened:
        for rank in range(4):
            share = RankShare(rank, 4)
            from_file, again = (ShardedWeights(source, config, share) for source in (opened, RandomWeights(config, 1)))
            assert from_file.headers == again.headers
            for name in from_file.headers:
                assert torch.equal(from_file.read(name), again.read(name))
        first = ShardedWeights(opened, config, RankShare(1, 4))
        qkv = opened.read("model.layers.0.self_attn.qkv_proj.weight")
        expected = torch.cat((qkv[8:16], qkv[40:48], qkv[72:80]))
        assert torch.equal(first.read("model.layers.0.self_attn.qkv_proj.weight"), expected)
        down = opened.read("model.layers.0.mlp.down_proj.weight")
        assert torch.equal(first.read("model.layers.0.mlp.down_proj.weight"), down[:, 6:12])
        assert torch.equal(first.read(HEAD), opened.read(HEAD)[8:16])
        assert torch.equal(first.read(EMBEDDING), opened.read(EMBEDDING))


def test_a_bias_of_a_sum_is_added_by_one_rank() -> None:
    fields = {**PUBLISHED["meta-llama/Llama-3.2-1B-Instruct"].config, "attention_bias": True, "num_hidden_layers": 1}
    config = parse_spec(fields)
    name = "model.layers.0.self_attn.o_proj.bias"
    read = [ShardedWeights(RandomWeights(config, 1), config, RankShare(rank, 2)).read(name) for rank in range(2)]
    assert torch.equal(read[0], RandomWeights(config, 1).read(name))
    assert not read[1].any()


def test_a_file_that_states_another_shape_is_refused_by_every_rank() -> None:
    config = config_of("Llama-3.1-8B, W4A16 with act-order")
    config = replace(config, layers=config.layers[:1])
    name = "model.layers.0.self_attn.o_proj.weight_shape"

    class OtherShape(HeadersAlone):
        def read(self, name: str) -> Tensor:
            return torch.tensor([4096, 4000])

    for rank in range(2):
        with pytest.raises(WeightsError, match=r"o_proj.weight_shape: says \[4096, 4000\]; the config asks for"):
            ShardedWeights(OtherShape(config), config, RankShare(rank, 2)).read(name)
