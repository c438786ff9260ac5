"""KV pieces copied from place to place and summed on the way, read once: words of 32 bits times coefficients of 64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from baton_kernels.compiled.emitter import I64, LANES, Kernel
from baton_kernels.compiled.machine_code import Function, compile_kernels, has_vectors

_WIDE = f"<{LANES} x i64>"


@dataclass(frozen=True, slots=True)
class Rows:
    """Units whose pieces lie in even steps, and so do a piece's heads; steps and offsets in words."""

    address: int
    units: Tensor
    """[units] int64: the first word of each."""
    piece_step: int
    head_step: int

    @classmethod
    def of(cls, view: Tensor, places: list[tuple[int, ...]]) -> Rows:
        """view [..., layers, 2, kv_heads, tokens, head_dim]; places: of each unit, its index in the first ones."""
        words = view.element_size()
        units = [sum(i * step for i, step in zip(place, view.stride(), strict=False)) * words // 4 for place in places]
        piece_step, head_step = (view.stride(n) * words // 4 for n in (-4, -3))
        return cls(view.data_ptr(), torch.tensor(units, dtype=torch.int64), piece_step, head_step)


def suits_copy(row_words: int) -> bool:
    """Decide if heads with this number of words in a piece are handled here: whole vectors, where kernels compile."""
    return row_words % LANES == 0 and has_vectors()


def copy_pieces(
    source: Rows, target: Rows | None, shape: tuple[int, int, int], factors: Tensor | None, sums: Tensor | None
) -> None:
    """shape (pieces of a unit, heads, words of a head). factors [heads · words] int64 and sums [units, pieces] int64,
    contiguous, come together; without a target nothing is copied.
    """
    with_sums = factors is not None and sums is not None
    to = source if target is None else target
    factor_address, sum_address = (0, 0) if factors is None or sums is None else (factors.data_ptr(), sums.data_ptr())
    _compiled(target is not None, with_sums)(
        *(source.address, source.units.data_ptr(), source.piece_step, source.head_step),
        *(to.address, to.units.data_ptr(), to.piece_step, to.head_step),
        *(len(source.units), *shape, factor_address, sum_address),
    )


@lru_cache(maxsize=4)
def _compiled(with_copy: bool, with_sums: bool) -> Function:
    k = Kernel(
        "kv_copy", source="*i32", source_units="*i64", source_piece=I64, source_head=I64,
        target="*i32", target_units="*i64", target_piece=I64, target_head=I64,
        units=I64, pieces=I64, heads=I64, row=I64, factors="*i64", sums="*i64",
    )  # fmt: skip
    with k.loop(0, k["units"]) as unit:
        bases = {side: k.pointer(side) + (k.pointer(f"{side}_units") + unit).load() for side in ("source", "target")}
        with k.loop(0, k["pieces"]) as piece:
            total = k.variable(k.constant(0, _WIDE))
            with k.loop(0, k["heads"]) as head:
                source, target = (
                    bases[side] + (piece * k[f"{side}_piece"] + head * k[f"{side}_head"]) for side in bases
                )
                factors = k.pointer("factors") + head * k["row"]
                with k.loop(0, k["row"], LANES) as at:
                    words = (source + at).load(LANES)
                    if with_copy:
                        (target + at).store(words)
                    if with_sums:
                        total.value = total.value + words.to("sext", _WIDE) * (factors + at).load(LANES)
            if with_sums:
                place = k.pointer("sums") + (unit * k["pieces"] + piece)
                place.store(k.call(I64, f"llvm.vector.reduce.add.v{LANES}i64", total.value))
    (function,) = compile_kernels([k])
    return function
