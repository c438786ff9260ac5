"""Truncated draws in Triton: parts of all rows find their winners, then one program a row checks and, rarely, redraws.

A row with top-k up to MAX_GATHERED goes another way: the k-th largest maximum among small tiles bounds the k-th largest
logit from below, so the tiles that reach it hold every token in question. They are gathered into registers, where
thresholds are bisected over float bit patterns.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain
from baton_kernels.gpu.integer_hash import gumbel
from baton_kernels.gpu.truncation import _count_from, _mass_from, _ordered

PART = 2048
TILE = 128
"""Logits under one maximum."""
MAX_GATHERED = 128
"""Tiles that a row's program keeps in registers."""
STRIDE = 4096
"""Logits a pass of the row's program takes at a time."""


@triton.jit
def _noisy(logits, token, temperature, seed, choice, index):
    return logits / temperature + gumbel(seed, choice, index, token)


@triton.jit
def _part_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, seed_ptr, choice_ptr, index_ptr, best_ptr, id_ptr, maximum_ptr, mass_ptr,
    vocab, tiles, PART: tl.constexpr, TILE: tl.constexpr, MAX_GATHERED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Of each part: its winner (noisy value and id), its mass relative to its greatest logit, the tiles' maxima."""
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    token = part * PART + tl.arange(0, PART)
    logits = tl.load(logits_ptr + row * vocab + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [PART]
    highest = tl.max(tl.reshape(logits, [PART // TILE, TILE]), axis=1)  # [tiles of the part]
    tile = part * (PART // TILE) + tl.arange(0, PART // TILE)
    tl.store(maximum_ptr + row * tiles + tile, highest, mask=tile < tiles)
    temperature = tl.load(temperature_ptr + row)
    noisy = logits
    if temperature > 0.0:
        peak = tl.max(highest, axis=0)
        mass = tl.where(logits == float("-inf"), 0.0, tl.exp((logits - peak) / temperature))
        tl.store(mass_ptr + row * parts + part, tl.sum(mass, axis=0))
        top_k = tl.load(top_k_ptr + row)
        if (top_k <= 0) | (top_k > MAX_GATHERED):
            noisy = _noisy(
                logits, token, temperature, tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row)
            )
    best = tl.max(noisy, axis=0)
    tl.store(best_ptr + row * parts + part, best)
    tl.store(id_ptr + row * parts + part, tl.min(tl.where(noisy == best, token, vocab), axis=0))


@triton.jit
def _winner_above(row_ptr, vocab, bound, lowest, temperature, seed, choice, index, STRIDE: tl.constexpr):
    """Id of the noisy maximum among tokens whose logit is above `bound` and at least `lowest`."""
    best = tl.full([], float("-inf"), tl.float32)
    winner = vocab
    for start in range(0, vocab, STRIDE):
        token = start + tl.arange(0, STRIDE)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [STRIDE] of [V]
        is_left = (logits > bound) & (logits >= lowest)
        if tl.max(is_left.to(tl.int32), axis=0) > 0:
            noisy = tl.where(is_left, _noisy(logits, token, temperature, seed, choice, index), float("-inf"))
            greatest = tl.max(noisy, axis=0)
            if greatest > best:
                best = greatest
                winner = tl.min(tl.where(noisy == greatest, token, vocab), axis=0)
    return winner


@triton.jit
def _threshold(ordered, weight, wanted, at_least):
    """The greatest bit pattern at or above which `weight` sums to at least `wanted`; not below `at_least`."""
    found = at_least
    for step in range(32):
        bit = tl.full([], 0x80000000, tl.uint32) >> step
        candidate = found | bit
        if tl.sum(tl.where(ordered >= candidate, weight, 0.0), axis=0) >= wanted:
            found = candidate
    return found


@triton.jit
def _draw_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, choice_ptr, index_ptr, best_ptr, id_ptr,
    maximum_ptr, mass_ptr, gathered_ptr, ids_ptr, vocab, parts, tiles, PART: tl.constexpr, TILE: tl.constexpr,
    MAX_GATHERED: tl.constexpr, STRIDE: tl.constexpr, BLOCK_PARTS: tl.constexpr, BLOCK_TILES: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    part = tl.arange(0, BLOCK_PARTS)
    best = tl.load(best_ptr + row * parts + part, mask=part < parts, other=float("-inf"))  # [parts], as the next
    ids = tl.load(id_ptr + row * parts + part, mask=part < parts, other=vocab)
    winner = tl.minimum(tl.min(tl.where(best == tl.max(best, axis=0), ids, vocab), axis=0), vocab - 1)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    is_truncated = (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)
    if (temperature > 0.0) & is_truncated:
        seed = tl.load(seed_ptr + row)
        choice = tl.load(choice_ptr + row)
        index = tl.load(index_ptr + row)
        tile = tl.arange(0, BLOCK_TILES)
        maxima = tl.load(maximum_ptr + row * tiles + tile, mask=tile < tiles, other=float("-inf"))  # [tiles]
        highest = tl.max(maxima, axis=0)
        gap = float("-inf")
        if min_p > 0.0:
            gap = tl.minimum(tl.log(min_p), 0.0) * temperature
        lowest = highest + gap
        count = 0
        is_reached = tile < 0
        if (top_k > 0) & (top_k <= MAX_GATHERED):
            zero = tl.full([], 0, tl.uint32)
            ranks = _ordered(maxima)
            wanted = tl.minimum(top_k, tiles).to(tl.float32)
            bound = _threshold(ranks, (tile < tiles).to(tl.float32), wanted, zero)
            is_reached = (ranks >= bound) & (tile < tiles)
            count = tl.sum(is_reached.to(tl.int32), axis=0)
        if (count > 0) & (count <= MAX_GATHERED):
            # Numbers of the tiles in question, side by side; then their tokens.
            place = tl.cumsum(is_reached.to(tl.int32), axis=0) - 1
            tl.store(gathered_ptr + row * MAX_GATHERED + place, tile, mask=is_reached)
            tl.debug_barrier()
            slot = tl.arange(0, MAX_GATHERED * TILE)
            is_slot = slot < count * TILE
            number = tl.load(gathered_ptr + row * MAX_GATHERED + slot // TILE, mask=is_slot, other=0)
            token = number * TILE + slot % TILE
            logits = tl.load(row_ptr + token, mask=is_slot & (token < vocab), other=float("-inf")).to(tl.float32)
            ranks = _ordered(logits)
            is_token = is_slot & (token < vocab)
            floor = _threshold(ranks, is_token.to(tl.float32), top_k.to(tl.float32), tl.full([], 0, tl.uint32))
            if top_p < 1.0:
                mass = tl.where(ranks >= floor, tl.exp((logits - highest) / temperature), 0.0)
                mass = tl.where(is_token, mass, 0.0)
                nucleus = _threshold(ranks, mass, top_p * tl.sum(mass, axis=0), tl.full([], 0, tl.uint32))
                floor = tl.minimum(tl.maximum(floor, nucleus), _ordered(highest))
            is_kept = is_token & (ranks >= floor) & (logits - highest >= gap)
            noisy = tl.where(is_kept, _noisy(logits, token, temperature, seed, choice, index), float("-inf"))
            winner = tl.min(tl.where(noisy == tl.max(noisy, axis=0), token, vocab), axis=0)
        else:
            masses = tl.load(mass_ptr + row * parts + part, mask=part < parts, other=0.0)  # [parts]
            tiles_of_part: tl.constexpr = PART // TILE
            peaks = tl.max(tl.reshape(maxima, [BLOCK_TILES // tiles_of_part, tiles_of_part]), axis=1)  # [BLOCK_PARTS]
            shrink = tl.where(peaks == float("-inf"), 0.0, tl.exp((peaks - highest) / temperature))
            total = tl.sum(masses * shrink, axis=0)
            floor = tl.full([], 0, tl.uint32)
            if top_k > 0:  # beyond what is gathered
                for step in range(32):
                    candidate = floor | (tl.full([], 0x80000000, tl.uint32) >> step)
                    if _count_from(row_ptr, vocab, candidate, STRIDE) >= top_k:
                        floor = candidate
                total = _mass_from(row_ptr, vocab, floor, highest, temperature, STRIDE)
                logit = tl.load(row_ptr + winner).to(tl.float32)
                if (_ordered(logit) < floor) | (top_k > MAX_GATHERED):
                    # The k-th logit bounds the redraw: `bound` is the greatest logit below it.
                    below = tl.maximum(floor, 0x00800000) - 1  # not below -inf
                    bits = tl.where((below >> 31) != 0, below ^ 0x80000000, below ^ 0xFFFFFFFF)
                    bound = bits.to(tl.float32, bitcast=True)
                    winner = _winner_above(row_ptr, vocab, bound, lowest, temperature, seed, choice, index, STRIDE)
            is_open = True
            while is_open:
                logit = tl.load(row_ptr + winner).to(tl.float32)
                above = 0.0
                if logit < highest:
                    above = _mass_from(row_ptr, vocab, _ordered(logit) + 1, highest, temperature, STRIDE)
                is_kept = (logit >= highest) | ((logit - highest >= gap) & ((top_p >= 1.0) | (above < top_p * total)))
                is_open = not is_kept
                if is_open:
                    winner = _winner_above(row_ptr, vocab, logit, lowest, temperature, seed, choice, index, STRIDE)
    tl.store(ids_ptr + row, tl.minimum(winner, vocab - 1).to(tl.int64))


def truncated_draw_triton(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    index: Tensor,
) -> Tensor:
    """As `baton_kernels.truncated_draw.truncated_draw`; logits contiguous."""
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return ids
    parts, tiles = triton.cdiv(vocab, PART), triton.cdiv(vocab, TILE)

    def scratch(columns: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=logits.device)

    best, best_id = scratch(parts, torch.float32), scratch(parts, torch.int32)
    maximum, mass = scratch(tiles, torch.float32), scratch(parts, torch.float32)
    keys = (seed.long(), choice.long(), index.long())
    launch = chain(logits)
    _part_kernel[(rows, parts)](
        logits, temperature, top_k, *keys, best, best_id, maximum, mass, vocab, tiles,
        PART, TILE, MAX_GATHERED, bool(launch), num_warps=4, **launch,
    )  # fmt: skip
    block_parts = triton.next_power_of_2(parts)
    _draw_kernel[(rows,)](
        logits, temperature, top_k, top_p, min_p, *keys, best, best_id, maximum, mass,
        scratch(MAX_GATHERED, torch.int32), ids, vocab, parts, tiles, PART, TILE, MAX_GATHERED, STRIDE,
        block_parts, block_parts * (PART // TILE), bool(launch), num_warps=16, **launch,
    )  # fmt: skip
    return ids
