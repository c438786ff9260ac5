"""A worker without a model: real scheduler, protocol and KV hand-over, step durations from given step times.

It emulates hardware that is not available. Tokens are made up and KV is a few bytes a token, so its answers mean
nothing. It has a pair fingerprint of its own, so that it never pairs with a worker that computes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from baton_engine.memory.kv_pool import KvPool
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.step_load import LoadMeter, StepLoad
from baton_engine.scheduling.step_plan import (
    EncodedChunk,
    OpenSlot,
    PrefillChunk,
    ScoredChunk,
    SlotTokens,
    StepPlan,
    StepResult,
)
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.encoding import EncodingKind, EncodingLimits, pack_floats
from baton_wire.messages.values import WIRE_VERSION, PairFingerprint, PromptLogprob, TokenLogprob
from baton_wire.rules.step_times import PacedTimes
from baton_worker.building.bundle_files import read_bundle
from baton_worker.building.parts import EngineParts, limits_of, scheduler_of
from baton_worker.config import Task, WorkerConfig
from baton_worker.errors import ConfigError

log = logging.getLogger(__name__)

BLOCK_TOKENS = 64
ELEMENT_BYTES = 4
HEAD_DIM = 4
LANDING_SEQUENCES = 32
"""Hand-overs of full length that the landing region holds: far fewer bytes than on a real worker."""
ENCODED_WIDTH = 8
"""Values of a made-up embedding."""
FIRST_TOKEN = 16
"""Least id of a made-up token: smaller ones are often special."""


def step_s(times: PacedTimes, load: StepLoad) -> float:
    """Seconds that the step takes on the emulated hardware."""
    seconds = 0.0
    if load.prefill_tokens:
        seconds += times.prefill.seconds(load.prefill_tokens, load.prefill_pairs)
    if load.decode_rows:
        seconds += times.decode.seconds(load.decode_rows, load.kv_tokens)
    return seconds


def read_times(path: Path) -> PacedTimes:
    """Read step times from a file. Raises ConfigError with one line."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PacedTimes)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"argument --paced: {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Launched:
    step: int
    tokens: tuple[SlotTokens, ...]
    scored: tuple[ScoredChunk, ...]
    encoded: tuple[EncodedChunk, ...]
    end_s: float
    seconds: float


@dataclass(slots=True)
class _Slot:
    opened: OpenSlot
    drawn: int


class PacedRunner:
    """Implements `plan.Runner`: a step is done when its time is over, one after the other."""

    def __init__(
        self,
        times: PacedTimes,
        max_slots: int,
        vocabulary: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._times, self._clock, self._sleep = times, clock, sleep
        self._vocabulary = vocabulary
        self._meter = LoadMeter(max_slots)
        self._slots: dict[int, _Slot] = {}
        self._launched: deque[_Launched] = deque()
        self._end_s = 0.0

    def launch(self, plan: StepPlan) -> None:
        for opened in plan.opens:
            self._slots[opened.slot] = _Slot(opened, len(opened.outputs))
        seconds = step_s(self._times, self._meter.load(plan))
        self._end_s = max(self._clock(), self._end_s) + seconds
        drawing = [slot for chunk in plan.prefill for slot in chunk.sample]
        tokens = tuple([self._draw(slot) for slot in (*drawing, *plan.decode)])
        self._launched.append(_Launched(plan.step, tokens, self._score(plan), _encode(plan), self._end_s, seconds))

    def is_done(self) -> bool:
        return bool(self._launched) and self._clock() >= self._launched[0].end_s

    def collect(self) -> StepResult:
        if not self._launched:
            raise RuntimeError("collect: no step was launched")
        oldest = self._launched.popleft()
        while (left := oldest.end_s - self._clock()) > 0:
            self._sleep(left)
        return StepResult(oldest.step, oldest.tokens, oldest.seconds, oldest.scored, encoded=oldest.encoded)

    def execute(self, plan: StepPlan) -> StepResult:
        self.launch(plan)
        return self.collect()

    def _score(self, plan: StepPlan) -> tuple[ScoredChunk, ...]:
        """Every token of a prompt is as likely as any other."""
        even = PromptLogprob(-math.log(self._vocabulary), 1, ())
        return tuple(
            ScoredChunk(number, (even,) * len(chunk.targets))
            for number, chunk in enumerate(plan.prefill)
            if chunk.targets
        )

    def _draw(self, number: int) -> SlotTokens:
        """A made-up token: follows from seed, choice and index, so that a migrated sequence goes on the same."""
        slot = self._slots[number]
        sampling, span = slot.opened.sampling, self._vocabulary - FIRST_TOKEN
        token = FIRST_TOKEN + (sampling.seed + 7919 * slot.opened.choice + 31 * slot.drawn) % span
        while token in sampling.stop_token_ids:
            token = FIRST_TOKEN + (token + 1 - FIRST_TOKEN) % span
        slot.drawn += 1
        if sampling.logprobs is None:
            return SlotTokens(number, (token,))
        return SlotTokens(number, (token,), (TokenLogprob(-math.log(self._vocabulary), ()),))


def _encode(plan: StepPlan) -> tuple[EncodedChunk, ...]:
    """Made-up results, which follow from the last token."""
    return tuple(
        EncodedChunk(number, pack_floats(_made_up(chunk)))
        for number, chunk in enumerate(plan.prefill)
        if chunk.encoding is not None and chunk.ends
    )


def _made_up(chunk: PrefillChunk) -> list[float]:
    assert chunk.encoding is not None
    is_embedding = chunk.encoding.kind is EncodingKind.EMBEDDING
    count = chunk.encoding.dimensions or ENCODED_WIDTH if is_embedding else len(chunk.encoding.token_ids)
    angle = float(chunk.tokens[-1])
    return [math.sin(angle + place) for place in range(count)]


def build(config: WorkerConfig, times: PacedTimes, observe: Callable[[int, StepLoad, float], None]) -> EngineParts:
    """An engine that only keeps time. Waits until the worker is as old as the start-up takes. Raises ConfigError."""
    log.warning("EMULATED: no model computes here; %s", times.label)
    bundle = read_bundle(Path(config.model))
    vocabulary, context = _vocabulary(Path(config.model)), config.max_context_tokens or 8_192
    geometry = KvGeometry(1, 1, HEAD_DIM, ELEMENT_BYTES, config.block_tokens or BLOCK_TOKENS)
    blocks = max(times.kv_capacity_tokens, context) // geometry.block_tokens + 1
    landing = LANDING_SEQUENCES * geometry.block_bytes * (context // geometry.block_tokens + 1)
    pool = KvPool(geometry, blocks, torch.float32, torch.device("cpu"))
    scheduler = scheduler_of(config, pool, context)
    runner = PacedRunner(times, config.max_sequences, vocabulary)
    return EngineParts(
        bundle=bundle,
        geometry=geometry,
        pools=[pool],
        landing_bytes=landing if config.lands else 0,
        scheduler=scheduler,
        stepper=Stepper(scheduler, runner, observe),
        limits=limits_of(config, vocabulary, context, follows_grammars=False, encoding=_encoding(config.tasks)),
        fingerprint=_fingerprint(times, geometry, bundle.sha256),
    )


def _fingerprint(times: PacedTimes, geometry: KvGeometry, tokenizer: str) -> PairFingerprint:
    digest = hashlib.sha256(b"paced\0" + times.label.encode()).hexdigest()
    return PairFingerprint(
        wire_version=WIRE_VERSION,
        model_hash=digest,
        dtype="float32",
        kv_dtype="float32",
        layers=geometry.layers,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        rope=digest,
        tokenizer=tokenizer,
    )


def _encoding(tasks: tuple[Task, ...]) -> EncodingLimits:
    return EncodingLimits(ENCODED_WIDTH, generates=not tasks or Task.GENERATE in tasks, reranks=Task.RERANK in tasks)


def _vocabulary(model: Path) -> int:
    try:
        config = msgspec.json.decode((model / "config.json").read_bytes())
        size = int(config["vocab_size"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"argument --model: {model}/config.json: {error!r}") from error
    if size <= FIRST_TOKEN:
        raise ConfigError(f"argument --model: vocab_size {size} is not over {FIRST_TOKEN}")
    return size
