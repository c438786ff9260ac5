"""Forbidden tokens as one function: sixteen bits of a mask choose among sixteen logits, in one pass over each row."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from torch import Tensor

from baton_kernels.cpu.compiled.emitter import I64, LANES, MASK, VECTOR, Kernel
from baton_kernels.cpu.compiled.machine_code import Function, compile_kernels

_CHUNKS_OF_WORD: Final = 32 // LANES


def forbid_tokens_compiled(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """As `baton_kernels.token_mask.forbid_tokens`, for logits of float32. Call `machine_code.has_vectors` before."""
    vocab = logits.shape[1]
    compiled()(logits.data_ptr(), rows.data_ptr(), allowed.data_ptr(), len(rows), vocab, allowed.shape[1])


@lru_cache(maxsize=1)
def compiled() -> Function:
    """Compiles on its first call: some hundredths of a second."""
    k = Kernel("forbid_tokens", logits="*float", rows="*i64", allowed="*i16", masked=I64, vocab=I64, words=I64)
    with k.loop(0, k["masked"]) as row:
        logits = k.pointer("logits") + (k.pointer("rows") + row).load() * k["vocab"]
        bits = k.pointer("allowed") + row * k["words"] * _CHUNKS_OF_WORD
        with k.loop(0, k["vocab"], LANES) as at:
            inside = k.first_lanes(k["vocab"] - at)
            is_allowed = (bits + at // LANES).load().to("bitcast", MASK)
            is_forbidden = k.select(is_allowed, k.constant(0, MASK), inside)
            (logits + at).store_where(is_forbidden, k.constant(float("-inf"), VECTOR))
    (function,) = compile_kernels([k])
    return function
