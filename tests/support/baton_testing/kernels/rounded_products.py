"""The products of a mixture of experts with rows of 8 bits, part by part: the formula in float64, and how far from it a
kernel may be.

Three forms: "block", e4m3 with scales of 128 x 128 weights and 128 columns of a row; "channel", e4m3 with a scale a
feature and a row; "int8", the same with integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.dense.quantised_weight import GROUP, column_order, dequantise

SHORT = 2**-8
"""A bfloat16 that falls to the other side."""


def rounded(x: Tensor, form: str) -> Tensor:
    """float64 rows to codes and back, group by group where there are blocks; each step written apart."""
    top = 127.0 if form == "int8" else 448.0
    parts = torch.split(x.double(), GROUP if form == "block" else x.shape[1], 1)
    out = list[Tensor]()
    for part in parts:
        scale = part.abs().amax(1, keepdim=True).clamp(min=1e-12) / top
        codes = (part / scale).round() if form == "int8" else (part / scale).float().to(torch.float8_e4m3fn).double()
        out.append(codes * scale)
    return torch.cat(out, 1)


def weight_of(stack: QuantisedStack, expert: int) -> Tensor:
    return dequantise(stack.part(expert), torch.float32).double()


def gated(form: str, gate: Tensor, up: Tensor) -> Tensor:
    """float64 → the middle before its codes."""
    if form == "block":
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.bfloat16().double(), up.bfloat16().double()
    return (torch.nn.functional.silu(gate).bfloat16().double() * up).bfloat16().double()


@dataclass(frozen=True, slots=True)
class Parts:
    """Inputs of the two products and the output of the second, of pairs sorted by expert."""

    rows: Tensor  # codes of x [P, H] in stored order
    row_scales: Tensor  # [1, P] or of groups [H / 128, P]
    codes: Tensor  # of the middle [P, F]
    scales: Tensor  # [1, P] or [F / 128, P]
    out: Tensor  # bfloat16 [P, H]


def plain_parts(
    form: str, x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor
) -> tuple[Tensor, Parts]:
    """The same in float32: sums are of another order than float64's, and some ties fall to the other side."""
    total = torch.zeros(x.shape, device=x.device)
    x_codes, x_scales = _codes(form, x.float())
    by_expert = list[tuple[Tensor, ...]]()
    for expert in range(len(gate_up.values)):
        token, choice = (experts == expert).nonzero(as_tuple=True)
        wide, wide_down = (weight_of(stack, expert).float() for stack in (gate_up, down))
        sums = _wide(x_codes[token], x_scales[token]) @ wide.t()
        codes, scales = _codes(form, gated(form, *sums.double().chunk(2, -1)).float())
        out = (_wide(codes, scales) @ wide_down.t()).bfloat16()
        total.index_add_(0, token, out.float() * shares[token, choice][:, None])
        by_expert.append((x_codes[token], x_scales[token], codes, scales, out))
    rows, row_scales, codes, scales, out = (torch.cat(parts) for parts in zip(*by_expert, strict=True))
    return total.to(x.dtype), Parts(_stored(rows), row_scales.t(), _stored(codes), scales.t(), out)


def _codes(form: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 rows [P, K] → codes [P, K] and scales [P, 1] or [P, K / 128], as kernels compute them."""
    kind, top = (torch.int8, 127.0) if form == "int8" else (torch.float8_e4m3fn, 448.0)
    groups = x.view(len(x), -1, GROUP if form == "block" else x.shape[1])
    greatest = groups.abs().amax(2).clamp(min=1e-12)
    scaled = (groups * (top / greatest)[:, :, None]).view_as(x)
    return (scaled.round() if form == "int8" else scaled).to(kind), greatest / top


def _wide(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes [P, K] times scales, in the dtype of these."""
    return codes.to(scales.dtype) * scales.repeat_interleave(codes.shape[1] // scales.shape[1], 1)


def _stored(codes: Tensor) -> Tensor:
    """Columns in the order in which weights are stored."""
    inside = torch.argsort(column_order(torch.arange(codes.shape[1], device=codes.device)[None])[0])
    return codes.view(torch.uint8)[:, inside].view(codes.dtype)


def check_products(  # noqa: PLR0913 - shapes and tolerances of one check
    form: str, x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor,
    got: Tensor, parts: Parts,
) -> None:  # fmt: skip
    """Element by element. Each product is compared with that of the codes that are there, and codes with what they are
    of: one that falls to the other side of a tie moves an element by 12 %, and a row may have half of its norm in one.
    A bfloat16 over a row's greatest is often a tie: float64 has other codes than the kernel in many rows.
    """
    order = torch.argsort(experts.flatten(), stable=True)
    of_pair = experts.flatten()[order]
    all_rows, all_codes = (column_order(codes.view(torch.uint8)) for codes in (parts.rows, parts.codes))
    total, size = (torch.zeros(x.shape, dtype=torch.float64, device=x.device) for _ in range(2))
    for expert in set(of_pair.tolist()):
        pairs = of_pair == expert
        token = order[pairs] // experts.shape[1]
        row_scales, scales = (factors.t()[pairs].double() for factors in (parts.row_scales, parts.scales))
        rows = _wide(all_rows[pairs].view(parts.rows.dtype), row_scales)
        assert_codes(form, rows, row_scales, x[token].double(), torch.zeros_like(rows), "rows")
        first = product_and_share(form, rows, weight_of(gate_up, expert))
        (gate, up), (near_gate, near_up) = (sides.chunk(2, -1) for sides in first)
        inner = gated(form, gate, up)
        if form != "block":  # what falls to the other side of a bfloat16
            near_gate, near_up = near_gate + SHORT * gate.abs(), near_up + SHORT * up.abs()
        # silu's steepest is 1.1; three times rounded to bfloat16.
        near = 1.1 * near_gate * (up.abs() + near_up) + torch.nn.functional.silu(gate).abs() * near_up
        near = near + (0 if form == "block" else 2 * SHORT) * inner.abs() + 1e-5 * inner.abs()
        middle = _wide(all_codes[pairs].view(parts.codes.dtype), scales)
        assert_codes(form, middle, scales, inner, near, "middle")
        out, near_out = product_and_share(form, middle, weight_of(down, expert))
        assert_near(parts.out[pairs].double(), out, near_out + SHORT * out.abs(), "second product")
        weighted = parts.out[pairs].double() * shares.flatten()[order[pairs]].double()[:, None]
        total.index_add_(0, token, weighted)
        size.index_add_(0, token, weighted.abs())
    assert_near(got.double(), total, SHORT * total.abs() + 1e-6 * size, "sum")


def assert_codes(form: str, got: Tensor, scales: Tensor, exact: Tensor, near: Tensor, what: str) -> None:
    """Codes brought back, float64 [P, K], are not further than half a step from what they are of, which itself is only
    known to `near`; and the greatest of a row or group is the scales' [P, 1] or [P, K / 128]."""
    top, half = (127.0, 0.5) if form == "int8" else (448.0, 2**-10)
    grouped = (len(got), scales.shape[1], got.shape[1] // scales.shape[1])
    of_group = near.view(grouped).amax(2)
    greatest = exact.abs().view(grouped).amax(2)
    assert_near(scales * top, greatest, of_group + 1e-6 * greatest + 1e-11, f"greatest of {what}")
    step = scales.repeat_interleave(grouped[2], 1) * half
    if form != "int8":
        step = torch.maximum(step, (exact.abs() + near) * 2**-4)
    assert_near(got, exact, near + step * 1.001, what)


def product_and_share(form: str, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """float64 rows times weight, and how far off each sum may be. Of e4m3 the matrix unit cuts what it adds 13 bits
    under the greatest, which is up to eight times the root of the products' squares; cuts of as many columns add up as
    their root does. Blocks do so for 128 columns at a time."""
    size = (rows.square() @ weight.square().t()).sqrt()
    columns = GROUP if form == "block" else rows.shape[1]
    return rows @ weight.t(), size * (2**-20 if form == "int8" else 2**-10 * columns**0.5)


def assert_near(got: Tensor, expected: Tensor, allowed: Tensor, what: str) -> None:
    beyond = (got - expected).abs() > allowed
    where = beyond.nonzero()
    first = tuple(where[0].tolist()) if len(where) else ()
    assert not bool(got.isnan().any()), what
    assert not len(where), (
        f"{what}: {len(where)} of {beyond.numel()}, first at {first}: {float(got[first])} for {float(expected[first])}"
        f", allowed {float(allowed[first])}"
    )
