"""Assemble the feed-forward blocks of layers: gated MLPs and experts, in the form that a device multiplies fastest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_engine.model.layers.experts import (
    CorrectedRouter,
    InputScaledExperts,
    Router,
    SeparateExperts,
    StackedExperts,
    WithSharedExpert,
)
from baton_engine.model.layers.linear import Linear, Projection, QuantisedLinear
from baton_engine.model.layers.mlp import OtherGate, gated_mlp
from baton_engine.model.layers.norm import PackedNorm, RmsNorm, no_norm
from baton_engine.model.parameter_reader import ParameterReader
from baton_kernels.dense.quantised_stack import QuantisedStack, stacked
from baton_kernels.dense.quantised_weight import QuantisedWeight
from baton_kernels.experts.expert_inputs import BiasedStacks, Correction, Mxfp4Stacks, PlainStacks, QuantisedStacks
from baton_kernels.experts.experts import streams_mxfp4
from baton_wire.models.decoder_spec import (
    ClampedGate,
    Dense,
    Experts,
    ExpertTensors,
    Gate,
    LayerSpec,
    SiluGate,
    StackedTensors,
)


def assemble_feed_forward(layer: LayerSpec, reader: ParameterReader, prefix: str) -> tuple[Projection, RmsNorm]:
    """The block of the layer whose tensors have the prefix, and the norm before it."""
    block, name = layer.feed_forward, layer.norms.before_feed_forward
    if isinstance(block, Experts):
        # Router and experts all read the norm, so it is folded into none.
        norm = no_norm().norm if name is None else reader.own_norm(f"{prefix}{name}.weight")
        return _with_shared(block, reader, prefix), norm
    packed = reader.norm(prefix, name)
    return _dense(block, reader, prefix, packed), packed.norm


def _dense(block: Dense, reader: ParameterReader, prefix: str, norm: PackedNorm) -> Projection:
    silu, within = isinstance(block.gate, SiluGate), f"{prefix}{block.name}."
    gate_up = reader.linear(within, *block.gate_up, has_bias=block.bias, norm=norm, gated=silu)
    down = reader.linear(within, block.down, has_bias=block.bias)
    return gated_mlp(_with_gate(gate_up, block.gate), down, block.inner)


def _with_gate(gate_up: Linear, gate: Gate) -> Linear:
    return gate_up if isinstance(gate, SiluGate) else OtherGate(gate_up, gate)


def _with_shared(block: Experts, reader: ParameterReader, prefix: str) -> Projection:
    chosen, shared = _experts(block, reader, prefix), block.shared
    experts = InputScaledExperts(chosen) if block.scales_inputs else chosen
    if shared is None:
        return experts
    gate = None if shared.gate is None else reader.tensor(f"{prefix}{shared.gate}.weight")
    return WithSharedExpert(experts, _dense(shared.block, reader, prefix, no_norm()), gate)


def _router(experts: Experts, reader: ParameterReader, prefix: str) -> Router | CorrectedRouter:
    name, corrected = f"{prefix}{experts.router}", experts.corrected
    if corrected is not None:
        bias = None if corrected.bias is None else reader.exact(prefix + corrected.bias).flatten()
        groups = corrected.groups, corrected.groups_per_token
        correction = Correction(*groups, corrected.scale, corrected.is_softmax, corrected.least_sum)
        return CorrectedRouter(reader.exact(f"{name}.weight"), bias, experts.per_token, experts.normalised, correction)
    bias_or_none = reader.tensor(f"{name}.bias") if experts.router_bias else None
    arrived = torch.zeros(1, dtype=torch.int32, device=reader.device)
    return Router(reader.tensor(f"{name}.weight"), bias_or_none, experts.per_token, experts.normalised, arrived)


def _experts(experts: Experts, reader: ParameterReader, prefix: str) -> StackedExperts | SeparateExperts:
    router = _router(experts, reader, prefix)
    names, numbers = experts.tensors, range(experts.count)
    is_fast = reader.device.type != "cpu" and reader.dtype == torch.bfloat16
    if isinstance(names, StackedTensors) and not names.has_biases:
        gate_up, down = _plain_stacks(names, reader, prefix)
        if is_fast:
            return StackedExperts(router, PlainStacks(gate_up, down))
        pack = reader.method.pack
        return SeparateExperts(
            router,
            tuple(pack(gate_up[n], None, None, True) for n in numbers),
            tuple(pack(down[n], None) for n in numbers),
        )
    if isinstance(names, StackedTensors):
        if is_fast and isinstance(experts.gate, ClampedGate):
            streams = streams_mxfp4(reader.device, router.weight.shape[1], experts.inner)
            if reader.formats.stacks is not None and streams:
                return StackedExperts(router, _mxfp4_stacks(names, reader, prefix, experts.gate))
            stacks = BiasedStacks(*_stacks(names, reader, prefix), experts.gate.limit, experts.gate.alpha)
            return StackedExperts(router, stacks)
        gate_up, gate_up_bias, down, down_bias = _stacks(names, reader, prefix)
        pack = reader.method.pack
        return SeparateExperts(
            router,
            tuple(_with_gate(pack(gate_up[n], gate_up_bias[n]), experts.gate) for n in numbers),
            tuple(pack(down[n], down_bias[n]) for n in numbers),
        )
    if is_fast:
        stored = _quantised_stacks(names, numbers, reader, prefix)
        if stored is not None:
            return StackedExperts(router, stored)
        gate_up = torch.stack([reader.weight(prefix, *names.gate_up(number)) for number in numbers])
        down = torch.stack([reader.weight(prefix, names.down(number)) for number in numbers])
        return StackedExperts(router, PlainStacks(gate_up, down))
    return SeparateExperts(
        router,
        tuple(reader.linear(prefix, *names.gate_up(n), has_bias=False, gated=True) for n in numbers),
        tuple(reader.linear(prefix, names.down(n), has_bias=False) for n in numbers),
    )


def _quantised_stacks(
    names: ExpertTensors, numbers: Sequence[int], reader: ParameterReader, prefix: str
) -> QuantisedStacks | None:
    """Expert stacks in their stored format; None if they are not quantised, or the device has no product for them."""

    def stack(sides: int, layers: Sequence[tuple[str, ...]]) -> QuantisedStack | None:
        parts = list[QuantisedWeight]()
        for layer in layers:
            packed = reader.linear(prefix, *layer, has_bias=False, gated=sides == 2)
            if not isinstance(packed, QuantisedLinear) or stacked([packed.weight], sides) is None:
                return None
            parts.append(packed.weight)
        return stacked(parts, sides)

    if reader.formats.of(prefix + names.down(numbers[0])) is None:
        return None
    gate_up = stack(2, [names.gate_up(number) for number in numbers])
    down = stack(1, [(names.down(number),) for number in numbers]) if gate_up is not None else None
    return None if gate_up is None or down is None else QuantisedStacks(gate_up, down)


def _plain_stacks(names: StackedTensors, reader: ParameterReader, prefix: str) -> tuple[Tensor, Tensor]:
    """Read gate_up, the gate first, and down, both [experts, features, columns]."""
    stacks = [reader.tensor(prefix + name) for name in (names.gate_up, names.down)]
    gate_up, down = (stack.transpose(1, 2).contiguous() if names.columns_first else stack for stack in stacks)
    return gate_up, down


def _stacks(names: StackedTensors, reader: ParameterReader, prefix: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read gate_up, its bias, down and its bias. Gate and up alternate in the file; here gate comes first."""
    gate_up, down = reader.stack(prefix + names.gate_up), reader.stack(prefix + names.down)
    gate_up_bias, down_bias = _biases(names, reader, prefix)
    return torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), 1), gate_up_bias, down, down_bias


def _mxfp4_stacks(names: StackedTensors, reader: ParameterReader, prefix: str, gate: ClampedGate) -> Mxfp4Stacks:
    gate_up, down = reader.mxfp4_stack(prefix + names.gate_up, in_turn=True), reader.mxfp4_stack(prefix + names.down)
    gate_up_bias, down_bias = _biases(names, reader, prefix)
    return Mxfp4Stacks(gate_up, gate_up_bias, down, down_bias, gate.limit, gate.alpha)


def _biases(names: StackedTensors, reader: ParameterReader, prefix: str) -> tuple[Tensor, Tensor]:
    bias = reader.tensor(f"{prefix}{names.gate_up}_bias")
    return torch.cat((bias[:, ::2], bias[:, 1::2]), 1), reader.tensor(f"{prefix}{names.down}_bias")
