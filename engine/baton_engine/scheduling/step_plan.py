"""One engine step as plain data: the plan that the scheduler gives the runner, and the result that comes back.

A plan holds only changes: the runner keeps per-slot state (block table, context length, last token, sampling state) on
its device, so that a decode step costs the host a tuple of slot numbers. Plans and results are plain integers and
frozen values: they can be sent to tensor-parallel ranks, recorded, or answered by a paced runner that has no model.

A *slot* is a row of the runner's per-sequence state. A *step* has a number, counted up by one; blocks that a step
references are not given to another sequence before that step's result has been collected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton_wire.messages.encoding import Encoding
from baton_wire.messages.values import PromptLogprob, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A sequence (one choice of one request) takes a free slot."""

    slot: int
    sampling: SamplingParams
    choice: int
    """Part of the noise's seed, so that the choices of one request differ."""
    prompt: tuple[int, ...]
    """The client's prompt ids, for the repetition penalty."""
    outputs: tuple[int, ...]
    """Ids generated so far: after a migration, a hand-over (token 1) or a preemption.

    The next token's index is their count.
    """
    context_tokens: int
    """Tokens whose KV is already in the slot's blocks."""
    last_token: int | None
    """Input of the slot's first decode row; None when a prefill chunk comes first."""


@dataclass(frozen=True, slots=True)
class BlockUpdate:
    """block_table[kv_group][slot][index] = block."""

    slot: int
    index: int
    block: int
    kv_group: int = 0


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy a whole block (all layers) before anything of this step runs: copy-on-write of a forked sequence."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Compute KV for `tokens` at positions start, start+1, … of `slot`, and draw a token for each slot in `sample`.

    Without tokens it computes nothing: the draw is from the logits that the chunk before it kept."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    sample: tuple[int, ...] = ()
    """Slots that draw their next token from the logits of the chunk's last position: none unless it is the sequence's
    last chunk, several with n > 1. A drawing slot's context becomes start + len(tokens); its blocks come with later
    plans."""
    targets: tuple[int, ...] = ()
    """The ids that follow the chunk's first positions and whose log probabilities are wanted; usually none."""
    alternatives: int = 0
    """Number of likeliest ids wanted besides each target."""
    keeps: bool = False
    """Keep the logits of the last position until the slot's next chunk draws from them or the slot is closed: the
    prompt is computed, but its grammar is still being compiled."""
    encoding: Encoding | None = None
    """The result that is wanted of the whole prompt's hidden states; its chunks draw nothing."""
    ends: bool = True
    """False if more of an encoded prompt follows."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All changes and work of one step. Order of effects: opens, blocks, copies, prefill with decode, closes."""

    step: int
    opens: tuple[OpenSlot, ...] = ()
    blocks: tuple[BlockUpdate, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    decode: tuple[int, ...] = ()
    """Slots that compute one row. Its input is the slot's last token (possibly still on the device), its position the
    slot's context length."""
    closes: tuple[int, ...] = ()
    """Slots given back after this step."""


@dataclass(frozen=True, slots=True)
class SlotTokens:
    """The tokens that one slot drew in one step: exactly one, as long as no runner speculates."""

    slot: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class SlotFailure:
    """A slot without a valid token: its grammar cannot be followed any further. Every later step reports it again."""

    slot: int
    detail: str


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """Log probabilities of a chunk's `targets`, in order."""

    chunk: int
    """Index of the chunk in the plan."""
    logprobs: tuple[PromptLogprob, ...]


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The result of an encoded prompt whose last chunk was in the step."""

    chunk: int
    """Index of the chunk in the plan."""
    values: bytes
    """float32 (`pack_floats`)."""


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    tokens: tuple[SlotTokens, ...]
    duration_s: float
    """Time that the device took, for the step-time model and metrics."""
    scored: tuple[ScoredChunk, ...] = ()
    failures: tuple[SlotFailure, ...] = ()
    """Slots that are missing from `tokens`."""
    encoded: tuple[EncodedChunk, ...] = ()


class Runner(Protocol):
    """Computes steps in order. `launch` may return before the step is done; results are collected in the same order."""

    def launch(self, plan: StepPlan) -> None: ...

    def is_done(self) -> bool:
        """True when the oldest launched, uncollected step has finished, so that `collect` would not wait."""
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest launched, uncollected step and return its result. Raises RuntimeError without one."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Launch and collect; only valid while nothing else is in flight."""
        ...
