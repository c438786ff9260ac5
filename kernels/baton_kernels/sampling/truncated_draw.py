"""Drawing one token per row among those that top-k, top-p and min-p keep, without sorting.

    id[n] = sample(mask_top_k_top_p_min_p(logits)[n])           as `sampling.py` and `truncation.py` define the two

On a GPU nothing is masked: with Gumbel noise, the winner among all tokens is the winner among the kept ones if it is
kept itself, and that is a matter of the mass above it. If it is not kept, nothing at or below its logit is, and the
next winner comes from above. A draw misses the nucleus with probability 1 - top_p at most, so one look is nearly
always enough. With top-k the few tokens in question are gathered, and threshold and draw are found in registers.

Bytes: reads N·V logits once to draw and once to check.
"""

from __future__ import annotations

from torch import Tensor

from baton_kernels.sampling.sampling import sample, sample_reference
from baton_kernels.sampling.sampling_inputs import Draws, Truncation
from baton_kernels.sampling.truncation import mask_top_k_top_p_min_p, mask_top_k_top_p_min_p_reference


def truncated_draw_reference(logits: Tensor, truncation: Truncation, draws: Draws) -> Tensor:
    """The two references, one after the other. Shapes as in `truncated_draw`."""
    return sample_reference(mask_top_k_top_p_min_p_reference(logits.float(), draws.temperature, truncation), draws)


def truncated_draw(logits: Tensor, truncation: Truncation, draws: Draws) -> Tensor:
    """One token per row: logits [N, V] (float32 on the CPU, any floating dtype on a GPU; at least one finite a row) →
    ids [N] int64."""
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.truncated_draw import truncated_draw_triton

        return truncated_draw_triton(logits, truncation, draws)
    return sample(mask_top_k_top_p_min_p(logits, draws.temperature, truncation), draws)
