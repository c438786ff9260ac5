"""Stacks of experts multiplied with rows of 8 bits: the formula, rows rounded while sorted, the kernel on Hopper."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_kernels.dense.quantised_stack import QuantisedStack, dequantise_stack, stacked
from baton_kernels.dense.quantised_weight import GROUP, QuantisedWeight, column_order, pack_fp8, pack_int8
from baton_kernels.experts.expert_inputs import QuantisedStacks, Routing
from baton_kernels.experts.experts import rounded_experts_reference
from baton_testing.kernels.rounded_products import (
    SHORT,
    Parts,
    assert_near,
    check_products,
    gated,
    plain_parts,
    product_and_share,
    rounded,
    weight_of,
)

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
FORMS = ("block", "channel", "int8")
APART = {"block": 1.5e-2, "channel": 2e-2, "int8": 1e-2}
"""Norms of many rows: some codes fall to the other side, and the matrix unit adds e4m3 with fewer
bits."""


def draw(form: str, count: int, features: int, columns: int, device: str) -> list[QuantisedWeight]:
    generator = torch.Generator(device).manual_seed(features + columns)

    def one() -> QuantisedWeight:
        shape = (features // GROUP, columns // GROUP) if form == "block" else (features,)
        scale = (torch.rand(shape, generator=generator, device=device) + 0.5) * columns**-0.5
        if form == "int8":
            numbers = torch.randint(-128, 128, (features, columns), generator=generator, device=device)
            return pack_int8(numbers.to(torch.int8), scale / 60, rounds_inputs=True)
        values = torch.randn(features, columns, generator=generator, device=device)
        return pack_fp8(values.to(torch.float8_e4m3fn), scale)

    return [one() for _ in range(count)]


def stacks(form: str, count: int, hidden: int, inner: int, device: str) -> tuple[QuantisedStack, QuantisedStack]:
    gate_up = stacked(draw(form, count, 2 * inner, hidden, device), 2)
    down = stacked(draw(form, count, hidden, inner, device), 1)
    assert gate_up is not None
    assert down is not None
    return gate_up, down


def chosen(routing: str, tokens: int, count: int, per_token: int, device: str) -> tuple[Tensor, Tensor]:
    """Shares and experts of each token."""
    generator = torch.Generator().manual_seed(tokens + count)
    scores = torch.rand(tokens, count, generator=generator)
    if routing == "one":  # everybody's first choice is the last expert; nobody's is the first
        scores[:, -1] = 2.0
        scores[:, 0] = -1.0
    elif routing == "few":  # no more experts than a token takes: all others are empty
        scores[:, per_token:] -= 2.0
    experts = scores.argsort(-1, descending=True)[:, :per_token].contiguous().to(device)
    shares = torch.rand(tokens, per_token, generator=generator).to(device)
    return shares / shares.sum(-1, keepdim=True), experts


def formula(
    form: str, x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor
) -> Tensor:
    """In float64 but for what is said to be rounded."""
    total = torch.zeros(x.shape, device=x.device, dtype=torch.float64)
    rows = rounded(x, form)
    for expert in range(len(gate_up.values)):
        wide_gate_up, wide_down = (weight_of(stack, expert) for stack in (gate_up, down))
        token, choice = (experts == expert).nonzero(as_tuple=True)
        inner = gated(form, *(rows[token] @ wide_gate_up.t()).chunk(2, -1))
        out = (rounded(inner, form) @ wide_down.t()).bfloat16().double()
        total.index_add_(0, token, out * shares.double()[token, choice][:, None])
    return total


def kernel_parts(
    x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Tensor, Parts]:  # fmt: skip
    """Run the kernel → its result, and its parts."""
    from baton_kernels.experts.gpu import rounded_stacks

    calls = list[tuple[Tensor, Tensor, Tensor]]()
    launch = rounded_stacks.multiply_codes

    def noted(codes: Tensor, scales: Tensor, table: Tensor, stack: QuantisedStack, out: Tensor, *rest: Tensor,
              gated: bool) -> None:  # fmt: skip
        launch(codes, scales, table, stack, out, *rest, gated=gated)
        calls.append((codes, scales.reshape(-1, len(codes)), out))

    with monkeypatch.context() as patched:
        patched.setattr(rounded_stacks, "multiply_codes", noted)
        got = rounded_stacks.rounded_experts_gluon(x, QuantisedStacks(gate_up, down), Routing(shares, experts))
    (rows, row_scales, _), (codes, scales, out) = calls
    return got, Parts(rows, row_scales, codes, scales, out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("routing", ["any", "one", "few"])
def test_the_reference_equals_the_formula(form: str, routing: str) -> None:
    gate_up, down = stacks(form, 5, 256, 384, "cpu")
    x = torch.randn(60, 256, generator=torch.Generator().manual_seed(2)).bfloat16()
    shares, experts = chosen(routing, 60, 5, 2, "cpu")
    got = rounded_experts_reference(x, QuantisedStacks(gate_up, down), Routing(shares, experts)).double()
    expected = formula(form, x, gate_up, down, shares, experts)
    assert float((got - expected).norm() / expected.norm()) < 4e-3
    # Rounding is not nothing: a way with rows of 16 bits is further off than this.
    plain = torch.zeros_like(expected)
    for expert, (up_down, out) in enumerate(
        zip(dequantise_stack(gate_up, torch.float64), dequantise_stack(down, torch.float64), strict=True)
    ):
        gate, up = (x.double() @ up_down.t()).chunk(2, -1)
        part = (torch.nn.functional.silu(gate) * up) @ out.t()
        plain += part * (shares.double() * (experts == expert)).sum(1)[:, None]
    assert float((plain - expected).norm() / expected.norm()) > (4e-3 if form == "int8" else 2e-2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [128, 400, 640])
@pytest.mark.parametrize("few_pairs", [0, 4096])
def test_rows_are_rounded_while_they_are_sorted(
    triton_device: str, form: str, columns: int, few_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same codes and scales as of rows that are rounded first, and sorted after."""
    from baton_kernels.dense.gpu.rounded_activations import quantise_groups, quantise_rows
    from baton_kernels.experts.gpu import expert_sort

    monkeypatch.setattr(expert_sort, "FEW_PAIRS", few_pairs)
    monkeypatch.setattr(expert_sort, "CHUNK", 16)
    x = torch.randn(30, columns, generator=torch.Generator().manual_seed(columns)).bfloat16().to(triton_device)
    x[3] = 0
    _, experts = chosen("one", 30, 6, 2, triton_device)
    kind = torch.int8 if form == "int8" else torch.float8_e4m3fn
    plan = expert_sort.sort_by_expert(x, experts, 6, 8, kind, form == "block")
    codes, scales = quantise_groups(x) if form == "block" else quantise_rows(x, kind)
    order = torch.argsort(experts.flatten(), stable=True)
    assert torch.equal(plan.place.long()[order], torch.arange(60, device=x.device))
    token = order // 2
    assert plan.x.dtype == kind
    assert torch.equal(plan.x.view(torch.uint8), codes.view(torch.uint8)[token])
    assert plan.scales is not None
    assert torch.equal(plan.scales, scales[token].t())
    # Codes are x over its scale: e4m3 to 2⁻⁴ (the interpreter rounds to neighbours of neighbours), integers to half.
    width = GROUP if form == "block" else columns
    wide = scales[token].repeat_interleave(width, 1)[:, :columns].float()
    apart = (column_order(plan.x.view(torch.uint8)).view(kind).float() * wide - x[token].float()).abs()
    relative = 2**-4 if plan.x.is_cuda else 0.55
    allowed = wide * 0.51 if form == "int8" else x[token].float().abs() * relative + wide * 2**-9
    assert bool((apart <= allowed).all())


def test_rows_are_rounded_where_the_checkpoint_says_so_and_pairs_are_many() -> None:
    pytest.importorskip("triton")
    from baton_kernels.experts.gpu.rounded_stacks import ROUNDED_FROM, rounds

    block, channel, int8 = (QuantisedStacks(*stacks(form, 4, 256, 128, "cpu")) for form in FORMS)
    border = 4 * (ROUNDED_FROM or 1 << 40)
    for pair in (block, channel, int8):
        assert not rounds(pair, border - 1)
        assert rounds(pair, border) == (ROUNDED_FROM is not None)
    # W8A16: integers whose activations keep 16 bits, in one of the two at least.
    wide = replace(int8.down, rounds_inputs=False)
    assert not rounds(replace(int8, down=wide), border)
    assert not rounds(QuantisedStacks(replace(int8.gate_up, rounds_inputs=False), wide), border)
    assert not rounds(QuantisedStacks(block.gate_up, channel.down), border)
    assert not rounds(QuantisedStacks(channel.gate_up, int8.down), border)


FAULTS = ["gate's scale", "down's scale", "column", "row", "sum"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_check_finds_what_is_wrong(
    triton_device: str, form: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scale of a block or channel 10 % off, one column left out, one pair of another token, one share. The kernel
    where there is one, else products in float32."""
    device = triton_device
    gate_up, down = stacks(form, 4, 640, 384, device)
    x = torch.randn(300, 640, generator=torch.Generator().manual_seed(8)).bfloat16().to(device)
    shares, experts = chosen("any", 300, 4, 2, device)
    wrong_up, wrong_down, wrong_x, wrong_shares = (
        replace(gate_up, values=gate_up.values.clone(), scales=gate_up.scales.clone()),
        replace(down, scales=down.scales.clone()), x.clone(), shares.clone(),
    )  # fmt: skip
    if fault == "gate's scale":
        wrong_up.scales[2].view(-1)[3] *= 1.1
    elif fault == "down's scale":
        wrong_down.scales[1].view(-1)[2] *= 1.1
    elif fault == "column":
        wrong_up.values[0, :, 77] = 0
    elif fault == "row":
        wrong_x[7] = x[8]
    elif fault == "sum":
        wrong_shares[9] = shares[9].flip(0)
    wrong = wrong_x, wrong_up, wrong_down, wrong_shares, experts
    got, parts = kernel_parts(*wrong, monkeypatch) if IS_HOPPER else plain_parts(form, *wrong)
    what = {"down's scale": "second product", "sum": "sum"}.get(fault, "middle|greatest")
    with pytest.raises(AssertionError, match=what) if fault else nullcontext():
        check_products(form, x, gate_up, down, shares, experts, got, parts)


SHAPES = [(8, 3, 256, 128), (5, 2, 256, 384), (6, 2, 640, 4352), (128, 8, 2048, 768)]
"""Experts, of a token, hidden, inner. The third has so many tiles that row blocks take turns, and odd halves of
tiles."""


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "per_token", "hidden", "inner"), SHAPES)
@pytest.mark.parametrize(
    ("routing", "tokens"), [("any", 3), ("any", 700), ("any", 4097), ("one", 129), ("one", 1025), ("few", 384)]
)
def test_rounded_experts_equal_the_formula(  # noqa: PLR0913 - columns of the table
    form: str, count: int, per_token: int, hidden: int, inner: int, routing: str, tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In memory that holds no numbers, and ten times the same bits."""
    from baton_kernels.experts.gpu.rounded_stacks import rounded_experts_gluon

    gate_up, down = stacks(form, count, hidden, inner, "cuda")
    x = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(tokens)).bfloat16().cuda()
    x[tokens // 2] = 0
    shares, experts = chosen(routing, tokens, count, per_token, "cuda")
    poison(monkeypatch)
    both, taken = QuantisedStacks(gate_up, down), Routing(shares, experts)
    got = rounded_experts_gluon(x, both, taken)
    for _ in range(9):
        assert torch.equal(got, rounded_experts_gluon(x, both, taken))
    monkeypatch.undo()
    again, parts = kernel_parts(x, gate_up, down, shares, experts, monkeypatch)
    assert torch.equal(got, again)
    check_products(form, x, gate_up, down, shares, experts, got, parts)
    expected = formula(form, x, gate_up, down, shares, experts)
    if tokens > 100:  # of a few rows one code is much of the norm
        assert float((got.double() - expected).norm() / expected.norm()) < APART[form]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pairs", [-1, 0, 70_000])
def test_the_border_is_the_one_that_is_written_down(form: str, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pairs` are counted from the border, or in all: more pairs than are sorted at once go in pieces."""
    from baton_kernels.experts.experts import experts as multiply
    from baton_kernels.experts.gpu import rounded_stacks

    monkeypatch.setattr(rounded_stacks, "ROUNDED_FROM", 20)
    gate_up, down = stacks(form, 8, 256, 128, "cuda")
    tokens = pairs if pairs > 0 else 8 * 20 + pairs
    x = torch.randn(tokens, 256, generator=torch.Generator().manual_seed(5)).bfloat16().cuda()
    shares, experts = chosen("any", tokens, 8, 1, "cuda")
    got = multiply(x, QuantisedStacks(gate_up, down), Routing(shares, experts)).double()
    plain = [dequantise_stack(stack, torch.float32) for stack in (gate_up, down)]
    expected = formula(form, x, gate_up, down, shares, experts)
    apart = float((got - expected).norm() / expected.norm())
    if pairs >= 0:
        assert apart < APART[form]
        return
    wide = torch.zeros_like(expected)
    for expert, (first, second) in enumerate(zip(*plain, strict=True)):
        gate, up = (x.double() @ first.double().t()).chunk(2, -1)
        out = (torch.nn.functional.silu(gate) * up) @ second.double().t()
        wide += out * (shares.double() * (experts == expert)).sum(1)[:, None]
    assert float((got - wide).norm() / wide.norm()) < 5e-3
    assert apart > float((got - wide).norm() / wide.norm())


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("form", ["channel", "int8"])
@pytest.mark.parametrize(("hidden", "inner"), [(400, 208), (16, 1040)])
def test_sizes_that_no_tile_divides(form: str, hidden: int, inner: int) -> None:
    from baton_kernels.experts.gpu.rounded_stacks import rounded_experts_gluon

    gate_up, down = stacks(form, 7, hidden, inner, "cuda")
    x = torch.randn(500, hidden, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    shares, experts = chosen("any", 500, 7, 2, "cuda")
    got = rounded_experts_gluon(x, QuantisedStacks(gate_up, down), Routing(shares, experts)).double()
    expected = formula(form, x, gate_up, down, shares, experts)
    assert float((got - expected).norm() / expected.norm()) < APART[form]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [(127, 1, 128, 0, 129, 0, 256, 257), (0, 0, 0, 0, 0, 0, 0, 3), (1,) * 8])
@pytest.mark.parametrize(("features", "columns"), [(384, 256), (4352, 640)])
def test_a_product_of_codes_equals_the_formula(form: str, sizes: tuple[int, ...], features: int, columns: int) -> None:
    """Experts have `sizes` rows each. Compared element by element, before anything is rounded twice."""
    from baton_kernels.experts.gpu.expert_sort import sort_by_expert
    from baton_kernels.experts.gpu.rounded_stacks import ROWS, codes_of, multiply_codes

    stack = stacked(draw(form, len(sizes), features, columns, "cuda"), 1)
    assert stack is not None
    experts = torch.cat([torch.full((size, 1), expert) for expert, size in enumerate(sizes)]).cuda()
    x = torch.randn(len(experts), columns, generator=torch.Generator().manual_seed(3)).bfloat16().cuda()
    plan = sort_by_expert(x, experts, len(sizes), ROWS, codes_of(stack), stack.has_blocks)
    assert plan.scales is not None
    out = torch.full((len(experts) + 200, features), float("nan"), dtype=torch.bfloat16, device="cuda")
    multiply_codes(plan.x, plan.scales, plan.table, stack, out[: len(experts)], plan.scales, gated=False)
    codes = column_order(plan.x.view(torch.uint8)).view(plan.x.dtype).double()
    width = GROUP if stack.has_blocks else columns
    rows = codes * plan.scales.t().repeat_interleave(width, 1)[:, :columns].double()
    weights = dequantise_stack(stack, torch.float32).double()
    expected = torch.cat(
        [part @ weights[expert].t() for expert, part in enumerate(torch.split(rows, list(sizes))) if len(part)]
    )
    off = torch.cat(
        [
            product_and_share(form, part, weights[expert])[1]
            for expert, part in enumerate(torch.split(rows, list(sizes)))
            if len(part)
        ]
    )
    assert_near(out[: len(experts)].double(), expected, off + SHORT * expected.abs(), "product")
    assert bool(out[len(experts) :].isnan().all()), "nothing is written behind the last row"


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new memory hold no numbers from now on: each byte is 255, which is NaN of e4m3, bfloat16 and float32."""
    empty = torch.empty

    def poisoned(*arguments: object, **options: object) -> Tensor:
        memory: Tensor = empty(*arguments, **options)  # type: ignore[call-overload]
        if memory.numel() and memory.is_cuda:
            memory.view(torch.uint8).fill_(255)
        return memory

    monkeypatch.setattr(torch, "empty", poisoned)
