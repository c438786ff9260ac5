"""Kernels that are interpreted with less work compute the same, and leave Triton's language as they found it."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

LARGEST = 2**31 - 1


@triton.jit
def _twice(x):  # type: ignore[no-untyped-def]
    return x + x


@triton.jit  # type: ignore[untyped-decorator]
def _sum_kernel(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    values = tl.load(x + row * SIZE + tl.arange(0, SIZE))
    tl.store(out + row, tl.sum(_twice(_twice(values))))


def sums(x: torch.Tensor) -> list[float]:
    out = torch.zeros(len(x), dtype=x.dtype)
    _sum_kernel[(len(x),)](x, out, x.shape[1])
    return out.tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where a GPU is")
def test_launch_after_launch_the_language_is_interpreted_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = interpreter._patch_lang
    patch, looked = patched._patch, list[object]()

    def counted(function: object) -> object:
        looked.append(function)
        return patch(function)

    monkeypatch.setattr(patched, "_patch", counted)
    assert not interpreter.interpreter_builder.options.sanitize_overflow
    for seed in range(3):
        looked.clear()
        x = torch.randint(-9, 9, (5, 16), generator=torch.Generator().manual_seed(seed)).float()
        assert sums(x) == (4 * x).sum(1).tolist()
        assert 1 <= len(looked) <= 2, "once for each module that is named"
        assert tl.core.is_builtin(tl.load)
        assert tl.core.is_builtin(tl.tensor.__add__)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where a GPU is")
def test_integers_wrap_around() -> None:
    assert sums(torch.full((1, 2), LARGEST, dtype=torch.int32)) == [-8]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where a GPU is")
@pytest.mark.parametrize("kind", [tl.int1, tl.uint8, tl.bfloat16, tl.float8e4nv, tl.float32, tl.int64])
def test_types_have_the_widths_of_numpy(kind: tl.dtype) -> None:
    bits = max(8, kind.primitive_bitwidth)
    for whole in (kind, tl.block_type(kind, [4])):
        assert 8 * interpreter._get_np_dtype(whole).itemsize == bits
    for pointer in (tl.pointer_type(kind), tl.block_type(tl.pointer_type(kind), [4])):
        assert interpreter._get_np_dtype(pointer).itemsize == 8
