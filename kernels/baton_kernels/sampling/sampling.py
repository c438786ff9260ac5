"""Drawing one token per row.

    id[n] = argmax_v logits[n, v]                                                  temperature[n] = 0 (greedy)
    id[n] = argmax_v logits[n, v] / temperature[n] + gumbel(seed, choice, index, v)    else

The first of equal maxima wins. Order of the pieces in a step: raw logits → `penalties` → `truncation` → here;
`logprobs` are taken from the raw logits.

Bytes: reads N·V logits; noise is made in registers on the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.sampling.cpu.sampling import draw, greatest, noisy_winners
from baton_kernels.sampling.gumbel import gumbel_noise_reference
from baton_kernels.sampling.sampling_inputs import Draws


def sample_reference(logits: Tensor, draws: Draws) -> Tensor:
    """The formula above, written out. Shapes as in `sample`."""
    is_greedy = (draws.temperature == 0)[:, None]
    noise = gumbel_noise_reference(draws.seed, draws.choice, draws.index, logits.shape[1])
    noisy = logits / torch.where(is_greedy, 1.0, draws.temperature[:, None]) + torch.where(is_greedy, 0.0, noise)
    return noisy.argmax(-1)


def greedy(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """The most likely token of each row: logits [N, V] → ids [N] int64, the first of equals; into `out` when given."""
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.sampling import greedy_triton

        return greedy_triton(logits, out)
    ids = greatest(logits)
    return ids if out is None else out.copy_(ids)


def sample(logits: Tensor, draws: Draws) -> Tensor:
    """One token per row: logits [N, V] float32 (-inf where excluded) → ids [N] int64."""
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.sampling import sample_triton

        return sample_triton(logits, draws)
    rows = [n for n, value in enumerate(draws.temperature.tolist()) if value > 0]
    if not rows:
        return greatest(logits)
    if len(rows) == logits.shape[0]:
        return draw(logits, draws)
    drawing = torch.tensor(rows)
    return greatest(logits).index_copy_(0, drawing, draw(logits.index_select(0, drawing), _rows_of(draws, drawing)))


def part_winners(logits: Tensor, first: int, draws: Draws | None) -> tuple[Tensor, Tensor]:
    """Each row's winner among the ids from `first` on: logits [N, part] → its score float32 [N], which winners of other
    parts of the vocabulary are compared with, and its id int64 [N]. Without draws all rows are greedy; draws are for
    CPUs."""
    places = greedy(logits)
    # Not by the places on a GPU: they mean nothing while kernels are only compiled.
    scores = (logits.amax(-1) if logits.is_cuda else logits.gather(1, places[:, None])[:, 0]).float()
    drawing = None if draws is None else draws.temperature.nonzero()[:, 0]
    if draws is not None and drawing is not None and len(drawing):
        noisy = noisy_winners(logits.index_select(0, drawing), _rows_of(draws, drawing), first)
        scores, places = (
            all_rows.index_copy_(0, drawing, own) for all_rows, own in zip((scores, places), noisy, strict=True)
        )
    return scores, places + first


def _rows_of(draws: Draws, rows: Tensor) -> Draws:
    per_row = (draws.temperature, draws.seed, draws.choice, draws.index)
    return Draws(*(values.index_select(0, rows) for values in per_row))
