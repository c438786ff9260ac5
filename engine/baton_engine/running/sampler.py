"""Draw the next token of every row: penalties, bias, forbidden stop ids, masks, truncation, noise, logprobs.

State per slot is only what the options ask for; a batch of greedy rows without options is one argmax. The noise is a
function of (seed, choice, token index, vocabulary id), so a sequence draws the same tokens wherever it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.memory.host_memory import upload
from baton_engine.model.layers.summed import VocabularyShare
from baton_engine.scheduling.step_plan import OpenSlot
from baton_kernels.sampling.logprobs import Logprobs, logprobs
from baton_kernels.sampling.penalties import apply_bias, apply_penalties
from baton_kernels.sampling.sampling import greedy, part_winners, sample
from baton_kernels.sampling.sampling_inputs import Draws, Penalties, Truncation
from baton_kernels.sampling.truncated_draw import truncated_draw
from baton_wire.messages.values import SamplingParams

LOWEST_TEMPERATURE = 1e-5
"""Rows with a lower temperature are greedy."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Drawn ids [N] int64 of the slots (host and device), and logprobs of the rows that asked for them."""

    ids: Tensor
    slots: Tensor
    logprobs: Logprobs | None
    logprob_rows: tuple[int, ...]
    logprob_counts: tuple[int, ...]
    """The number of alternatives asked for, per row of `logprobs`."""


@dataclass(frozen=True, slots=True)
class _Noise:
    temperature: Tensor  # [N] float32
    seed: Tensor  # [N] int64, as the next
    choice: Tensor


@dataclass(frozen=True, slots=True)
class _Bias:
    rows: Tensor  # [B] int64, as the next
    ids: Tensor
    values: Tensor  # [B] float32


@dataclass(frozen=True, slots=True)
class _Rows:
    """Options of one set of slots, computed once and kept while the same slots draw. None: no row needs the stage."""

    slots: tuple[int, ...]
    host_slots: npt.NDArray[np.int64]
    device_slots: Tensor
    penalties: Penalties | None
    bias: _Bias | None
    min_tokens_until: int
    """From this token index on no row forbids stop ids here; rows with a grammar never do: their masks do it."""
    truncation: Truncation | None
    noise: _Noise | None
    logprob_rows: tuple[int, ...]
    logprob_index: Tensor
    logprob_counts: tuple[int, ...]


class Sampler:
    """Sampling state of `max_slots` slots over a vocabulary."""

    def __init__(
        self, vocab_size: int, max_slots: int, device: torch.device, share: VocabularyShare | None = None
    ) -> None:
        """`share`: the logits to draw from are those of one rank's part of the vocabulary."""
        self._vocab_size = vocab_size
        self._max_slots = max_slots
        self._device = device
        self._share = share
        self._params: list[SamplingParams | None] = [None] * max_slots
        self._choices = np.zeros(max_slots, dtype=np.int64)
        self._next_index = np.zeros(max_slots, dtype=np.int64)
        self._counts: tuple[Tensor, Tensor] | None = None
        self._rows: _Rows | None = None

    def open(self, opened: OpenSlot) -> None:
        """Begin a slot's sequence: the next token drawn has the index len(outputs)."""
        self._params[opened.slot] = _finite(opened.sampling)
        self._choices[opened.slot] = opened.choice
        self._next_index[opened.slot] = len(opened.outputs)
        self._rows = None
        if _is_penalised(opened.sampling):
            self._count(opened)

    def count_greedy(self, slots: tuple[int, ...]) -> Tensor | None:
        """Count one drawn token for each slot if all just take their greatest raw logit, and return the slots on the
        device. None if some slot asks for more."""
        rows = self._rows_of(slots)
        if rows.penalties or rows.bias or rows.noise or rows.logprob_rows:
            return None
        indices = self._next_index[rows.host_slots]
        if rows.min_tokens_until and int(indices.min()) < rows.min_tokens_until:
            return None
        self._next_index[rows.host_slots] = indices + 1
        return rows.device_slots

    def draw(self, slots: tuple[int, ...], logits: Tensor, masks: TokenMasks | None = None) -> Draw:
        """Draw a token for each slot from its row of raw logits [N, vocab], in any dtype. With masks, the logits of the
        masked rows are changed, unless some row wants log probabilities.

        Where ranks have a part of the logits each, every rank draws the same: from all logits, or, where the greatest
        noisy one of a part is enough to know, from the parts' winners.
        """
        rows = self._rows_of(slots)
        indices = self._next_index[rows.host_slots]
        if self._share is not None:
            if masks is None and self._needs_winners(rows, indices):
                self._next_index[rows.host_slots] = indices + 1
                return Draw(self._draw_shared(self._share, rows, indices, logits), rows.device_slots, None, (), ())
            logits = self._share.gather(logits)
        ids = self._draw(rows, indices, logits, masks)
        self._next_index[rows.host_slots] = indices + 1
        if rows.penalties is not None and self._counts is not None:
            one = torch.ones((), dtype=torch.int32, device=self._device)
            self._counts[1].index_put_((rows.device_slots, ids), one, accumulate=True)
        if not rows.logprob_rows:
            return Draw(ids, rows.device_slots, None, (), ())
        wanted = rows.logprob_index
        scores = logprobs(logits.index_select(0, wanted).float(), ids.index_select(0, wanted), max(rows.logprob_counts))
        return Draw(ids, rows.device_slots, scores, rows.logprob_rows, rows.logprob_counts)

    def _draw(self, rows: _Rows, indices: npt.NDArray[np.int64], raw: Tensor, masks: TokenMasks | None) -> Tensor:
        logits = raw
        if not logits.is_cuda or self._is_changed(rows, indices):
            logits = logits.float()
        if rows.penalties is not None and self._counts is not None:
            prompt, outputs = (part.index_select(0, rows.device_slots) for part in self._counts)
            logits = apply_penalties(logits, prompt, outputs, rows.penalties)
        if rows.bias is not None:
            logits = apply_bias(logits, rows.bias.rows, rows.bias.ids, rows.bias.values)
        if rows.min_tokens_until and int(indices.min()) < rows.min_tokens_until:
            logits = self._forbid_stops(rows, indices, logits)
        if masks is not None:
            # Log probabilities are those of the raw logits.
            logits = logits.clone() if logits is raw and rows.logprob_rows else logits
            masks.forbid(logits)
        if rows.noise is None:
            return greedy(logits)
        noise = rows.noise
        draws = Draws(noise.temperature, noise.seed, noise.choice, upload(indices, self._device))
        return sample(logits, draws) if rows.truncation is None else truncated_draw(logits, rows.truncation, draws)

    def _needs_winners(self, rows: _Rows, indices: npt.NDArray[np.int64]) -> bool:
        """True when the winners of parts of the vocabulary are enough to draw from. A GPU finds noisy ones in the whole
        vocabulary alone."""
        is_whole = rows.truncation is not None or bool(rows.logprob_rows) or self._is_changed(rows, indices)
        return not is_whole and (rows.noise is None or self._device.type == "cpu")

    def _draw_shared(
        self, share: VocabularyShare, rows: _Rows, indices: npt.NDArray[np.int64], logits: Tensor
    ) -> Tensor:
        noise = rows.noise
        draws = None
        if noise is not None:
            draws = Draws(noise.temperature, noise.seed, noise.choice, upload(indices, self._device))
        return share.choose(*part_winners(logits.float(), share.first, draws))

    def _is_changed(self, rows: _Rows, indices: npt.NDArray[np.int64]) -> bool:
        """True when something is added to the logits before the draw; otherwise the draw reads them unchanged."""
        if rows.penalties is not None or rows.bias is not None:
            return True
        return rows.min_tokens_until > 0 and int(indices.min()) < rows.min_tokens_until

    def _forbid_stops(self, rows: _Rows, indices: npt.NDArray[np.int64], logits: Tensor) -> Tensor:
        forbidden = [
            (row, token, -np.inf)
            for row, (params, index) in enumerate(zip(self._of(rows.slots), indices.tolist(), strict=True))
            if index < params.min_tokens and params.grammar is None
            for token in params.stop_token_ids
        ]
        bias = self._bias(forbidden)
        return logits if bias is None else apply_bias(logits, bias.rows, bias.ids, bias.values)

    def _of(self, slots: tuple[int, ...]) -> list[SamplingParams]:
        return [params for params in (self._params[slot] for slot in slots) if params is not None]

    def _count(self, opened: OpenSlot) -> None:
        """Fill the slot's row of the counts; they take memory only once a request asks for a penalty."""
        if self._counts is None:
            shape = (self._max_slots, self._vocab_size)
            self._counts = (
                torch.zeros(shape, dtype=torch.bool, device=self._device),
                torch.zeros(shape, dtype=torch.int32, device=self._device),
            )
        prompt = np.bincount(np.array(opened.prompt, dtype=np.int64), minlength=self._vocab_size) > 0
        outputs = np.bincount(np.array(opened.outputs, dtype=np.int64), minlength=self._vocab_size).astype(np.int32)
        self._counts[0][opened.slot] = upload(prompt, self._device)
        self._counts[1][opened.slot] = upload(outputs, self._device)

    def _rows_of(self, slots: tuple[int, ...]) -> _Rows:
        if self._rows is None or self._rows.slots != slots:
            self._rows = self._describe(slots)
        return self._rows

    def _describe(self, slots: tuple[int, ...]) -> _Rows:
        params = self._of(slots)
        assert len(params) == len(slots), "only opened slots draw"
        host_slots = np.array(slots, dtype=np.int64)
        logprob_rows = tuple(row for row, p in enumerate(params) if p.logprobs is not None)
        return _Rows(
            slots=slots,
            host_slots=host_slots,
            device_slots=upload(host_slots, self._device),
            penalties=self._penalties(params),
            bias=self._bias([(row, token, value) for row, p in enumerate(params) for token, value in p.logit_bias]),
            min_tokens_until=max((p.min_tokens for p in params if p.stop_token_ids and p.grammar is None), default=0),
            truncation=self._truncation(params),
            noise=self._noise(params, self._choices[host_slots]),
            logprob_rows=logprob_rows,
            logprob_index=upload(np.array(logprob_rows, dtype=np.int64), self._device),
            logprob_counts=tuple(p.logprobs for p in params if p.logprobs is not None),
        )

    def _penalties(self, params: list[SamplingParams]) -> Penalties | None:
        if not any(map(_is_penalised, params)):
            return None
        return Penalties(
            self._floats([p.presence_penalty for p in params]),
            self._floats([p.frequency_penalty for p in params]),
            self._floats([p.repetition_penalty for p in params]),
        )

    def _truncation(self, params: list[SamplingParams]) -> Truncation | None:
        if not any(p.top_k is not None or p.top_p < 1 or p.min_p > 0 for p in params if p.temperature > 0):
            return None
        return Truncation(
            upload(np.array([p.top_k or 0 for p in params], dtype=np.int32), self._device),
            self._floats([p.top_p for p in params]),
            self._floats([p.min_p for p in params]),
        )

    def _noise(self, params: list[SamplingParams], choices: npt.NDArray[np.int64]) -> _Noise | None:
        if all(p.temperature == 0 for p in params):
            return None
        seeds = np.array([p.seed for p in params], dtype=np.int64)
        return _Noise(
            self._floats([p.temperature for p in params]), upload(seeds, self._device), upload(choices, self._device)
        )

    def _bias(self, entries: list[tuple[int, int, float]]) -> _Bias | None:
        """Sparse additions to logits; ids outside the vocabulary can never be drawn and are dropped."""
        known = [entry for entry in entries if entry[1] < self._vocab_size]
        if not known:
            return None
        rows, ids, values = zip(*known, strict=True)
        return _Bias(
            upload(np.array(rows, dtype=np.int64), self._device),
            upload(np.array(ids, dtype=np.int64), self._device),
            self._floats(values),
        )

    def _floats(self, values: Sequence[float]) -> Tensor:
        return upload(np.array(values, dtype=np.float32), self._device)


def _finite(params: SamplingParams) -> SamplingParams:
    """Make rows of a very low temperature greedy: divided by it, logits overflow float32, and the greatest wins."""
    return params if params.temperature >= LOWEST_TEMPERATURE else msgspec.structs.replace(params, temperature=0.0)


def _is_penalised(params: SamplingParams) -> bool:
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1
