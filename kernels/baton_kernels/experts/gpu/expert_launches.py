"""Which numbers of tokens a mixture of experts launches kernels of its own for: what is run once has them compiled."""

from __future__ import annotations

from functools import cache

from baton_kernels.experts.gpu import rounded_stacks, streamed_mxfp4
from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS, bins_of_sort
from baton_kernels.experts.gpu.experts import are_few
from baton_kernels.experts.gpu.streamed_experts import LARGE_TILES_FROM, LIBRARY_BEYOND, row_block
from baton_kernels.experts.gpu.streamed_stacks import LARGEST_TILES_FROM
from baton_kernels.experts.gpu.token_mxfp4 import reads_alone


@cache
def least_of_each_kind(count: int, per_token: int, most_tokens: int) -> tuple[int, ...]:
    """List numbers from 1 to `most_tokens` of tokens that take `per_token` of `count` experts each. Any other number
    launches the kernels of one of these, whatever the weights' form."""
    least = dict[tuple[object, ...], int]()
    of_mxfp4, rounded = streamed_mxfp4.LARGE_TILES_FROM, rounded_stacks.ROUNDED_FROM or 0
    borders = (LARGE_TILES_FROM, LARGEST_TILES_FROM, of_mxfp4, rounded)
    for tokens in range(1, most_tokens + 1):
        pairs = tokens * per_token
        reached = tuple(pairs >= border * count for border in borders)
        kind = (
            tokens == 1,
            are_few(tokens, per_token, count),
            reads_alone(tokens, per_token, count),
            *bins_of_sort(min(pairs, MAX_PAIRS)),
            row_block(pairs, count),
            *reached,
        )
        least.setdefault((*kind, pairs > LIBRARY_BEYOND * count, pairs > MAX_PAIRS), tokens)
    return tuple(least.values())
