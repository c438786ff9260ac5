"""Truncated draws in Triton: parts of all rows find their winners, one program a row picks the row's, parts weigh what
is above it, and one program a row decides and, rarely, redraws.

A redraw does not only leave out what is at or below the rejected winner: masses above a few pivots between it and the
greatest logit are taken in the same pass, and the highest pivot with enough mass above it is the next bound.

A row with top-k up to MOST_TOP_K goes another way: the k-th largest maximum among small tiles bounds the k-th largest
logit from below, so the tiles that reach it hold every token in question. They are gathered into registers, where
thresholds are bisected over float bit patterns. So does a row with min-p alone, whose bound is known from the maximum,
and one with top-p up to MOST_TOP_P, whose first winners would seldom be kept: where the tiles' greatest logits alone
have the wanted mass, all tokens have.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.launching.dependent_launch import after_previous, chain
from baton_kernels.sampling.gpu.integer_hash import gumbel_of, noise_key, uniform
from baton_kernels.sampling.gpu.noisy_winner import LOG2_E, noisy_winner
from baton_kernels.sampling.gpu.truncation import count_from, mass_from, order_bits
from baton_kernels.sampling.sampling_inputs import Draws, Truncation

STEP, STEPS = 256, 16
PART = STEP * STEPS
PIVOTS = 4
WEIGH_WARPS, DRAW_WARPS = 4, 16
MOST_TOP_K = tl.constexpr(128)
MOST_TOP_P = tl.constexpr(0.6)
FEW, MANY = 2048, 16384
"""Tokens that a row's program keeps in registers; maxima of tiles, too."""
LEAST_MIN_P = tl.constexpr(0.02)
"""A row with this min-p or more and nothing else is gathered too: winners among all tokens are seldom kept."""


@triton.jit
def _pivot(logit, highest, j, PIVOTS: tl.constexpr):
    """Compute bound j of PIVOTS, from the logit (included) to the highest (not included)."""
    return logit + (highest - logit) * (j / PIVOTS)


@triton.jit
def _is_gathered(top_k, top_p, min_p):
    is_short = (top_p <= MOST_TOP_P) | ((top_p >= 1.0) & (min_p >= LEAST_MIN_P))
    return ((top_k > 0) & (top_k <= MOST_TOP_K)) | ((top_k <= 0) & is_short)


@triton.jit
def _part_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, choice_ptr, index_ptr, best_ptr, id_ptr,
    maximum_ptr, peak_ptr, mass_ptr, vocab, tiles, STEPS: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Find each part's winner (noisy value and id), greatest logit and mass relative to it; or no winner, but the
    tiles' maxima, and the mass if the row's top-p needs it."""
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    place = row * tl.num_programs(1) + part
    row_ptr = logits_ptr + row * vocab
    temperature = tl.load(temperature_ptr + row)
    top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    if (temperature > 0.0) & (not _is_gathered(top_k, top_p, min_p)):
        key = noise_key(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row))
        nothing = float("-inf")
        best, winner, peak, mass = noisy_winner(
            row_ptr, part * STEPS * STEP, vocab, 1.0 / temperature, key, nothing, nothing, STEPS, STEP
        )
        tl.store(best_ptr + place, best)
        tl.store(id_ptr + place, winner)
        tl.store(peak_ptr + place, peak)
        tl.store(mass_ptr + place, mass)
    else:
        best = tl.full([], float("-inf"), tl.float32)
        winner = tl.full([], 0, tl.int32) + vocab
        mass = tl.full([], 0.0, tl.float32)
        is_weighed = (temperature > 0.0) & (top_k <= 0) & (top_p < 1.0)
        for step in range(STEPS):
            token = (part * STEPS + step) * STEP + tl.arange(0, STEP)
            logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [STEP] of [V]
            maxima = tl.max(tl.reshape(logits, [STEP // TILE, TILE]), axis=1)  # [tiles of the step]
            tile = (part * STEPS + step) * (STEP // TILE) + tl.arange(0, STEP // TILE)
            tl.store(maximum_ptr + row * tiles + tile, maxima, mask=tile < tiles)
            greatest = tl.max(maxima, axis=0)
            if is_weighed & (greatest > float("-inf")):
                raised, scale = tl.maximum(best, greatest), LOG2_E / temperature
                mass *= tl.exp2((best - raised) * scale)
                mass += tl.sum(tl.exp2((logits - raised) * scale), axis=0)
            if greatest > best:
                best = greatest
                winner = tl.min(tl.where(logits == greatest, token, vocab), axis=0)
        tl.store(best_ptr + place, best)
        tl.store(id_ptr + place, winner)
        tl.store(peak_ptr + place, best)
        tl.store(mass_ptr + place, mass)


@triton.jit
def _pick_kernel(
    logits_ptr, best_ptr, id_ptr, peak_ptr, winner_ptr, logit_ptr, highest_ptr, vocab, parts,
    BLOCK_PARTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The row's winner of its parts', with its logit, and the row's greatest logit."""
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK_PARTS)
    best = tl.load(best_ptr + row * parts + part, mask=part < parts, other=float("-inf"))  # [parts], as the next two
    ids = tl.load(id_ptr + row * parts + part, mask=part < parts, other=vocab)
    peaks = tl.load(peak_ptr + row * parts + part, mask=part < parts, other=float("-inf"))
    winner = tl.minimum(tl.min(tl.where(best == tl.max(best, axis=0), ids, vocab), axis=0), vocab - 1)
    tl.store(winner_ptr + row, winner)
    tl.store(logit_ptr + row, tl.load(logits_ptr + row * vocab + winner).to(tl.float32))
    tl.store(highest_ptr + row, tl.max(peaks, axis=0))


@triton.jit
def _weigh_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, logit_ptr, highest_ptr, peak_ptr, above_ptr, vocab, parts,
    PART: tl.constexpr, PIVOTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The part's masses above the row's winner and above the pivots, [rows, PIVOTS, parts]."""
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)  # with less than 1 min-p does not matter
    if (temperature > 0.0) & (top_p < 1.0) & (not _is_gathered(top_k, top_p, 0.0)):
        pivot = tl.arange(0, PIVOTS)
        logit = tl.load(logit_ptr + row)
        highest = tl.load(highest_ptr + row)
        if tl.load(peak_ptr + row * parts + part) > logit:
            token = part * PART + tl.arange(0, PART)
            logits = tl.load(logits_ptr + row * vocab + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
            mass = tl.exp2((logits - highest) * (LOG2_E / temperature))
            pivots = _pivot(logit, highest, pivot, PIVOTS)
            above = tl.sum(tl.where(logits[None, :] > pivots[:, None], 1.0, 0.0) * mass[None, :], axis=1)  # [PIVOTS]
            tl.store(above_ptr + (row * PIVOTS + pivot) * parts + part, above)
        else:
            tl.store(above_ptr + (row * PIVOTS + pivot) * parts + part, tl.zeros([PIVOTS], tl.float32))


@triton.jit
def _redraw(
    row_ptr, vocab, bound, lowest, inverse, key, best_ptr, id_ptr, peak_ptr, parts, is_drawn,
    PART: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Id of the noisy maximum among tokens whose logit is above `bound` and at least `lowest`.

    `is_drawn`: the parts' bests are noisy winners. One that is above the bounds is its part's winner among those that
    are; only the other parts are looked through.
    """
    part = tl.arange(0, BLOCK_PARTS)
    is_part = part < parts
    bests = tl.load(best_ptr + part, mask=is_part, other=float("-inf"))  # [parts], as the next two
    winners = tl.load(id_ptr + part, mask=is_part, other=vocab)
    peaks = tl.load(peak_ptr + part, mask=is_part, other=float("-inf"))
    won = tl.load(row_ptr + winners, mask=winners < vocab, other=float("-inf")).to(tl.float32)
    is_known = (won > bound) & (won >= lowest) & is_drawn
    is_open = is_part & (peaks > bound) & (peaks >= lowest) & (is_known == 0)
    known = tl.where(is_known, bests, float("-inf"))
    best = tl.full([PART], float("-inf"), tl.float32)
    ids = tl.full([PART], 0, tl.int32) + vocab
    current = tl.min(tl.where(is_open, part, parts), axis=0)
    while current < parts:
        token = current * PART + tl.arange(0, PART)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [PART] of [V]
        noisy = logits * inverse + gumbel_of(uniform(key, token))
        is_better = (logits > bound) & (logits >= lowest) & (noisy > best)
        best = tl.where(is_better, noisy, best)
        ids = tl.where(is_better, token, ids)
        current = tl.min(tl.where(is_open & (part > current), part, parts), axis=0)
    greatest = tl.maximum(tl.max(best, axis=0), tl.max(known, axis=0))
    winner = tl.min(tl.where(best == greatest, ids, vocab), axis=0)
    return tl.minimum(winner, tl.min(tl.where(known == greatest, winners, vocab), axis=0))


@triton.jit
def _weigh_row(row_ptr, vocab, bound, highest, inverse, PART: tl.constexpr):
    """Mass above a bound, of the whole row."""
    mass = tl.zeros([PART], tl.float32)
    for start in range(0, vocab, PART):
        token = start + tl.arange(0, PART)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [PART] of [V]
        mass += tl.where(logits > bound, tl.exp((logits - highest) * inverse), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _threshold(ordered, weight, wanted, low, high, LEAST: tl.constexpr):
    """A bit pattern, known to be from low to high, at or above which lies what does at or above the greatest one from
    which on `weight` sums to at least `wanted`. Patterns do not differ in bits below LEAST alone."""
    differing = low ^ high
    differing |= differing >> 1
    differing |= differing >> 2
    differing |= differing >> 4
    differing |= differing >> 8
    differing |= differing >> 16
    threshold = low & (differing ^ 0xFFFFFFFF)
    bit = differing ^ (differing >> 1)
    while bit >= LEAST:
        candidate = threshold | bit
        if tl.sum(tl.where(ordered >= candidate, weight, 0.0), axis=0) >= wanted:
            threshold = candidate
        bit = bit >> 1
    return threshold


@triton.jit
def _draw_gathered(
    row_ptr, numbers_ptr, count, vocab, top_k, top_p, wanted, gap, highest, inverse, key, bound,
    SLOTS: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """The draw among `count` tiles; `bound` bounds the first threshold; `wanted`: of the nucleus, without top-k."""
    top = order_bits(highest)
    slot = tl.arange(0, SLOTS)
    is_slot = slot < count * TILE
    number = tl.load(numbers_ptr + slot // TILE, mask=is_slot, other=0)
    token = number * TILE + slot % TILE
    is_token = is_slot & (token < vocab)
    logits = tl.load(row_ptr + token, mask=is_token, other=float("-inf")).to(tl.float32)
    ranks = order_bits(logits)
    floor = tl.full([], 0, tl.uint32)
    if top_k > 0:
        floor = _threshold(ranks, is_token.to(tl.float32), top_k.to(tl.float32), bound, top, LEAST)
    if top_p < 1.0:
        mass = tl.where(is_token & (ranks >= floor), tl.exp((logits - highest) * inverse), 0.0)
        if top_k > 0:
            wanted = top_p * tl.sum(mass, axis=0)
        nucleus = _threshold(ranks, mass, wanted, tl.maximum(floor, bound), top, LEAST)
        floor = tl.minimum(tl.maximum(floor, nucleus), top)
    is_kept = is_token & (ranks >= floor) & (logits - highest >= gap)
    noisy = tl.where(is_kept, logits * inverse + gumbel_of(uniform(key, token)), float("-inf"))
    return tl.min(tl.where(noisy == tl.max(noisy, axis=0), token, vocab), axis=0)


@triton.jit
def _draw_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, choice_ptr, index_ptr, best_ptr, id_ptr,
    winner_ptr, maximum_ptr, peak_ptr, mass_ptr, above_ptr, gathered_ptr, ids_ptr, vocab, parts, tiles,
    PART: tl.constexpr, TILE: tl.constexpr, PIVOTS: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr,
    BLOCK_PARTS: tl.constexpr, BLOCK_TILES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    LEAST: tl.constexpr = 65536 if logits_ptr.dtype.element_ty == tl.bfloat16 else 1
    winner = tl.load(winner_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    if (temperature > 0.0) & ((top_k > 0) | (top_p < 1.0) | (min_p > 0.0)):
        inverse = 1.0 / temperature
        key = noise_key(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row))
        part = tl.arange(0, BLOCK_PARTS)
        peaks = tl.load(peak_ptr + row * parts + part, mask=part < parts, other=float("-inf"))  # [parts]
        highest = tl.max(peaks, axis=0)
        masses = tl.load(mass_ptr + row * parts + part, mask=part < parts, other=0.0)  # [parts]
        shrink = tl.where(peaks == float("-inf"), 0.0, tl.exp((peaks - highest) * inverse))
        wanted = top_p * tl.sum(masses * shrink, axis=0)
        gap = float("-inf")
        if min_p > 0.0:
            gap = tl.minimum(tl.log(min_p), 0.0) * temperature
        count = 0
        tile = tl.arange(0, BLOCK_TILES)
        is_reached = tile < 0
        bound = tl.full([], 0, tl.uint32)
        top = order_bits(highest)
        is_gathered = _is_gathered(top_k, top_p, min_p)
        if is_gathered:
            maxima = tl.load(maximum_ptr + row * tiles + tile, mask=tile < tiles, other=float("-inf"))  # [tiles]
            ranks = order_bits(maxima)
            if top_k > 0:
                places = tl.minimum(top_k, tiles).to(tl.float32)
                bound = _threshold(ranks, (tile < tiles).to(tl.float32), places, bound, top, LEAST)
                is_reached = (ranks >= bound) & (tile < tiles)
                if top_k > tiles:  # fewer tiles than tokens wanted: nothing bounds them
                    bound = tl.full([], 0, tl.uint32)
            elif top_p < 1.0:
                bound = _threshold(ranks, tl.exp((maxima - highest) * inverse), wanted, bound, top, LEAST)
                is_reached = (ranks >= bound) & (tile < tiles)
            else:
                is_reached = (maxima - highest >= gap) & (tile < tiles)
            count = tl.sum(is_reached.to(tl.int32), axis=0)
        if (count > 0) & (count <= MANY // TILE):
            # Numbers of the tiles in question, side by side; then their tokens.
            place = tl.cumsum(is_reached.to(tl.int32), axis=0) - 1
            tl.store(gathered_ptr + row * (MANY // TILE) + place, tile, mask=is_reached)
            tl.debug_barrier()
            numbers_ptr = gathered_ptr + row * (MANY // TILE)
            options = (row_ptr, numbers_ptr, count, vocab, top_k, top_p, wanted, gap, highest, inverse, key, bound)
            if count <= FEW // TILE:
                winner = _draw_gathered(*options, FEW, TILE, LEAST)
            else:
                winner = _draw_gathered(*options, MANY, TILE, LEAST)
        else:
            lowest = highest + gap
            logit = tl.load(row_ptr + winner).to(tl.float32)
            above = tl.full([], 0.0, tl.float32)
            low = float("-inf")
            sure = float("inf")  # from this logit on the mass above is known to be small enough
            best_row, id_row, peak_row = best_ptr + row * parts, id_ptr + row * parts, peak_ptr + row * parts
            is_drawn = is_gathered == 0
            if top_k > 0:  # too many to gather, or too many equal
                floor = tl.full([], 0, tl.uint32)
                for step in range(32):
                    candidate = floor | (tl.full([], 0x80000000, tl.uint32) >> step)
                    if count_from(row_ptr, vocab, candidate, PART) >= top_k:
                        floor = candidate
                wanted = top_p * mass_from(row_ptr, vocab, floor, highest, temperature, PART)
                # The greatest float below the k-th logit, not below -inf, is the bound of the draw.
                below = tl.maximum(floor, 0x00800000) - 1
                low = tl.where((below >> 31) != 0, below ^ 0x80000000, below ^ 0xFFFFFFFF).to(tl.float32, bitcast=True)
                winner = _redraw(
                    row_ptr, vocab, low, lowest, inverse, key, best_row, id_row, peak_row, parts, is_drawn,
                    PART, BLOCK_PARTS,
                )  # fmt: skip
                logit = tl.load(row_ptr + winner).to(tl.float32)
                above = _weigh_row(row_ptr, vocab, logit, highest, inverse, PART)
            elif is_gathered:  # without top-k, and too many reach the bound
                winner = _redraw(
                    row_ptr, vocab, low, lowest, inverse, key, best_row, id_row, peak_row, parts, is_drawn,
                    PART, BLOCK_PARTS,
                )  # fmt: skip
                logit = tl.load(row_ptr + winner).to(tl.float32)
                if top_p < 1.0:
                    above = _weigh_row(row_ptr, vocab, logit, highest, inverse, PART)
            elif top_p < 1.0:
                for j in tl.static_range(PIVOTS):
                    at = above_ptr + (row * PIVOTS + j) * parts + part
                    reached = tl.sum(tl.load(at, mask=part < parts, other=0.0), axis=0)
                    if j == 0:
                        above = reached
                    if reached >= wanted:
                        low = _pivot(logit, highest, j, PIVOTS)
                    elif sure == float("inf"):
                        sure = _pivot(logit, highest, j, PIVOTS)
            while (logit < highest) & ((logit - highest < gap) | ((top_p < 1.0) & (above >= wanted))):
                winner = _redraw(
                    row_ptr, vocab, low, lowest, inverse, key, best_row, id_row, peak_row, parts, is_drawn,
                    PART, BLOCK_PARTS,
                )  # fmt: skip
                logit = tl.load(row_ptr + winner).to(tl.float32)
                low = logit
                above = tl.full([], 0.0, tl.float32)
                if (top_p < 1.0) & (logit < sure):
                    above = _weigh_row(row_ptr, vocab, logit, highest, inverse, PART)
    tl.store(ids_ptr + row, tl.minimum(winner, vocab - 1).to(tl.int64))


def truncated_draw_triton(logits: Tensor, truncation: Truncation, draws: Draws) -> Tensor:
    """As `baton_kernels.sampling.truncated_draw.truncated_draw`; logits contiguous."""
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return ids
    tile = next(size for size in (8, 16, 32, 64, 128) if size == 128 or vocab <= size * MANY)
    parts, tiles = triton.cdiv(vocab, PART), triton.cdiv(vocab, tile)

    def scratch(columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=logits.device)

    best, best_id, peak, mass = scratch(parts), scratch(parts, torch.int32), scratch(parts), scratch(parts)
    maximum, above = scratch(tiles), scratch(PIVOTS * parts)
    keys = (draws.seed.long(), draws.choice.long(), draws.index.long())
    temperature, top_k, top_p, min_p = draws.temperature, truncation.top_k, truncation.top_p, truncation.min_p
    launch = chain(logits)
    block_parts = triton.next_power_of_2(parts)
    _part_kernel[(rows, parts)](
        logits, temperature, top_k, top_p, min_p, *keys, best, best_id, maximum, peak, mass, vocab, tiles,
        STEPS, STEP, tile, bool(launch), num_warps=1, **launch,
    )  # fmt: skip
    winner, logit, highest = scratch(1, torch.int32), scratch(1), scratch(1)
    _pick_kernel[(rows,)](
        logits, best, best_id, peak, winner, logit, highest, vocab, parts, block_parts, bool(launch),
        num_warps=1, **launch,
    )  # fmt: skip
    _weigh_kernel[(rows, parts)](
        logits, temperature, top_k, top_p, logit, highest, peak, above, vocab, parts,
        PART, PIVOTS, bool(launch), num_warps=WEIGH_WARPS, **launch,
    )  # fmt: skip
    _draw_kernel[(rows,)](
        logits, temperature, top_k, top_p, min_p, *keys, best, best_id, winner, maximum, peak, mass, above,
        scratch(MANY // tile, torch.int32), ids, vocab, parts, tiles, PART, tile, PIVOTS, FEW, MANY,
        block_parts, triton.next_power_of_2(tiles), bool(launch), num_warps=DRAW_WARPS, **launch,
    )  # fmt: skip
    return ids
