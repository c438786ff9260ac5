"""Forbid tokens in some rows of logits, by bits.

    l[rows[r], v] ← -inf where bit v of allowed[r] is 0

Bit v is bit v mod 32 of word v div 32, as grammar matchers write them. Other rows are not touched: a batch in which few
rows follow a grammar costs what those rows cost. In place, and before truncation and noise.

Bytes: reads R·V/8 bits, writes the forbidden ones of R·V logits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_kernels.sampling.cpu.token_mask import forbid_tokens_rows

WORD_BITS = 32


def mask_words(vocab: int) -> int:
    """Words of a row's mask."""
    return -(-vocab // WORD_BITS)


def forbid_tokens_reference(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """The formula above, written out. Shapes as in `forbid_tokens`."""
    vocab = logits.shape[1]
    bits = (allowed[:, :, None] >> torch.arange(WORD_BITS, device=allowed.device)) & 1
    forbidden = bits.view(len(rows), -1)[:, :vocab] == 0
    logits.index_copy_(0, rows, logits.index_select(0, rows).masked_fill_(forbidden, float("-inf")))


def forbid_tokens(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """Changes logits [N, V], contiguous, of any float. rows [R] int64, all different; allowed [R, W] int32, contiguous.

    W is at least `mask_words(V)`. Tokens beyond V in a mask are ignored.
    """
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.token_mask import forbid_tokens_triton

        forbid_tokens_triton(logits, rows, allowed)
        return
    if logits.dtype == torch.float32:
        forbidding(rows, allowed)(logits)
    else:
        forbid_tokens_rows(logits, rows, allowed)


def forbidding(rows: Tensor, allowed: Tensor) -> Callable[[Tensor], None]:
    """`forbid_tokens` for many draws: of these rows and masks, whose values may change, and of logits that are float32
    and on a CPU."""
    if _is_compiled():
        from baton_kernels.sampling.cpu.compiled_token_mask import forbidding_compiled

        return forbidding_compiled(rows, allowed)
    return lambda logits: forbid_tokens_rows(logits, rows, allowed)


def looking(
    masks: npt.NDArray[np.uint32], places: npt.NDArray[np.int64], bits: npt.NDArray[np.uint32]
) -> Callable[[], bool]:
    """Build a check: do masks [R, W], whose values may change, hold any of bits [P] in their words at places [P]?"""
    if _is_compiled():
        from baton_kernels.sampling.cpu.compiled_token_mask import looking_compiled

        return looking_compiled(masks, places, bits)
    return lambda: bool(np.count_nonzero(masks.take(places, axis=1) & bits))


@cache
def _is_compiled() -> bool:
    from baton_kernels.compiled.machine_code import has_vectors

    return has_vectors()


def prepare_for(device: torch.device) -> None:
    """Compile what is called on a CPU, so that the first row with a mask does not wait for it. Masks are looked at on
    the host, whatever the device is."""
    if _is_compiled():
        from baton_kernels.sampling.cpu.compiled_token_mask import compiled

        compiled()
