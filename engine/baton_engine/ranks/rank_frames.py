"""The frames between a worker's process and its ranks: msgpack of plain values, nothing that executes."""

from __future__ import annotations

from typing import Final

import msgspec

from baton_engine.scheduling.step_plan import StepPlan, StepResult
from baton_kernels.kv.kv_scales import KV_FP8

KV_DTYPES: Final = {"fp8": KV_FP8}


class RankFrame(msgspec.Struct, frozen=True, array_like=True):
    """Base of all frames."""


class LoadShare(RankFrame, frozen=True, tag=1):
    """Worker to rank: load your share of this model. Answered by ShareLoaded or RankRefused."""

    model: str
    dtype: str | None
    """One of `loading.DTYPES`; None: the default for the device."""
    max_context_tokens: int | None
    threads: int
    gpus: tuple[int, ...] = ()
    """The GPU of each rank, as this machine numbers them; empty: ranks compute on CPUs."""
    layers: int | None = None
    """Layers of the model, which are shared out as the stages of a pipeline; None: ranks share each layer."""


class MakeRunner(RankFrame, frozen=True, tag=2):
    """Worker to rank: map a pool of `blocks`, and make a runner over it. Answered by RankReady or RankRefused."""

    blocks: int
    block_tokens: int
    max_slots: int
    decodes: bool
    hands_over: bool = False
    kv_dtype: str | None = None
    """One of `KV_DTYPES`; None: the model's."""


class WatchLayers(RankFrame, frozen=True, tag=3):
    """Worker to rank: send LayersWritten from now on."""


class RunStep(RankFrame, frozen=True, tag=4):
    """Worker to rank: carry out this plan."""

    plan: StepPlan
    is_masked: bool
    """StepMasks follow, and the plan's draw waits for them."""


class StepMasks(RankFrame, frozen=True, tag=5):
    """Worker to rank: the tokens that some of the slots that draw may take. The others may take any."""

    slots: tuple[int, ...]
    words: bytes
    """uint32 [slots, W], as in `TokenMasks`."""


class ShareLoaded(RankFrame, frozen=True, tag=11):
    """Rank to worker: the share is in memory."""

    checkpoint: str
    """Digest of the files as they were when they were read: names, sizes, times. The same at every rank."""
    model_hash: str | None
    """The first rank's, which hashes the files' content; the others read no more than their share."""
    generates: bool
    """False: the checkpoint has no head for tokens."""
    free_bytes: int | None = None
    """Free memory of the rank's GPU; None for ranks on CPUs."""


class RankReady(RankFrame, frozen=True, tag=12):
    """Rank to worker: plans may come."""

    pool: bytes | None = None
    """Handle of the memory of the KV pool on the rank's GPU; None: the pool is in the worker's shared memory."""


class RankRefused(RankFrame, frozen=True, tag=13):
    """Rank to worker: the model or a size cannot work; the rank ends."""

    detail: str
    """One line."""
    is_memory: bool = False
    """True: the machine has not enough memory."""


class LayersWritten(RankFrame, frozen=True, tag=14):
    """Rank to worker: this rank's KV of layers [0, layers) of the step's prompts is in its pool."""

    step: int
    layers: int


class StepDone(RankFrame, frozen=True, tag=15):
    """Rank to worker: the step is over at this rank."""

    step: int
    drawn: int | None
    """Checksum of the drawn tokens: every rank must have drawn the same. None: this rank is a stage that draws
    nothing."""
    result: StepResult | None = None
    """The result that counts: the first rank's, or the last stage's."""


class RankCrashed(RankFrame, frozen=True, tag=16):
    """Rank to worker: something unforeseen failed; the rank ends."""

    detail: str
    """One line."""


ToRank = LoadShare | MakeRunner | WatchLayers | RunStep | StepMasks
FromRank = ShareLoaded | RankReady | RankRefused | LayersWritten | StepDone | RankCrashed

_encoder: Final = msgspec.msgpack.Encoder()
_to_rank: Final[msgspec.msgpack.Decoder[ToRank]] = msgspec.msgpack.Decoder(ToRank)
_from_rank: Final[msgspec.msgpack.Decoder[FromRank]] = msgspec.msgpack.Decoder(FromRank)


def encode_frame(frame: RankFrame) -> bytes:
    return _encoder.encode(frame)


def decode_to_rank(data: bytes) -> ToRank:
    """Raises msgspec.DecodeError."""
    return _to_rank.decode(data)


def decode_from_rank(data: bytes) -> FromRank:
    """Raises msgspec.DecodeError."""
    return _from_rank.decode(data)
