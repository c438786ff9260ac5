"""Forbidden tokens as one function: sixteen bits of a mask choose among sixteen logits, in one pass over each row. And
bits that are looked for in many masks.

Both are called once a step, when the layers have emptied the caches. Then each object that is touched costs more than
the work, so whatever stays the same from step to step is looked up beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from baton_kernels.compiled.emitter import I64, LANES, MASK, VECTOR, Kernel
from baton_kernels.compiled.machine_code import Function, compile_kernels

_CHUNKS_OF_WORD: Final = 32 // LANES


def forbidding_compiled(rows: Tensor, allowed: Tensor) -> Callable[[Tensor], None]:
    """As `baton_kernels.sampling.token_mask.forbidding`. Call `machine_code.has_vectors` before."""
    forbid, (masked, words) = compiled()[0], allowed.shape
    rows_at, allowed_at = rows.data_ptr(), allowed.data_ptr()

    def forbidden(logits: Tensor, _memory: object = (rows, allowed)) -> None:
        forbid(logits.data_ptr(), rows_at, allowed_at, masked, logits.shape[1], words)

    return forbidden


def looking_compiled(
    masks: npt.NDArray[np.uint32], places: npt.NDArray[np.int64], bits: npt.NDArray[np.uint32]
) -> Callable[[], bool]:
    """As `baton_kernels.sampling.token_mask.looking`. Call `machine_code.has_vectors` before."""
    look, matches = compiled()[1], np.zeros(1, dtype=np.uint32)
    first = matches.data
    addresses = tuple(array.ctypes.data for array in (masks, places, bits, matches))
    sizes = (len(masks), masks.strides[0] // masks.itemsize, len(places))

    def looked(_memory: object = (masks, places, bits)) -> bool:
        look(*addresses, *sizes)
        return first[0] != 0

    return looked


@lru_cache(maxsize=1)
def compiled() -> tuple[Function, Function]:
    """Kernels that forbid and that look. They compile on its first call: some hundredths of a second."""
    forbid, look = compile_kernels([_forbid(), _look()])
    return forbid, look


def _forbid() -> Kernel:
    k = Kernel("forbid_tokens", logits="*float", rows="*i64", allowed="*i16", masked=I64, vocab=I64, words=I64)
    with k.loop(0, k["masked"]) as row:
        logits = k.pointer("logits") + (k.pointer("rows") + row).load() * k["vocab"]
        bits = k.pointer("allowed") + row * k["words"] * _CHUNKS_OF_WORD
        with k.loop(0, k["vocab"], LANES) as at:
            inside = k.first_lanes(k["vocab"] - at)
            is_allowed = (bits + at // LANES).load().to("bitcast", MASK)
            is_forbidden = k.select(is_allowed, k.constant(0, MASK), inside)
            (logits + at).store_where(is_forbidden, k.constant(float("-inf"), VECTOR))
    return k


def _look() -> Kernel:
    """`found` becomes what the masks hold of the bits, all of it in one word."""
    k = Kernel(
        "look_for_bits",
        **{"masks": "*i32", "places": "*i64", "bits": "*i32", "found": "*i32"},
        **{"rows": I64, "words": I64, "count": I64},
    )
    held = k.variable(k.constant(0, "i32"))
    with k.loop(0, k["rows"]) as row, k.loop(0, k["count"]) as number:
        word = (k.pointer("masks") + (row * k["words"] + (k.pointer("places") + number).load())).load()
        held.value = held.value | (word & (k.pointer("bits") + number).load())
    k.pointer("found").store(held.value)
    return k
