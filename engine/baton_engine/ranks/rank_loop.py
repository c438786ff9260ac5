"""The life of a rank: load a share, map the pool, carry out plans one after the other, report.

One thread does all of this; another gives signs of life and looks whether the worker's process still lives.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from array import array
from typing import Final, NoReturn, TypeVar

import torch

from baton_engine.collectives.collective import SINGLE_RANK, Collective, RankLostError, RankShare
from baton_engine.collectives.device_collective import DeviceCollective
from baton_engine.collectives.shared_device_memory import DeviceMemoryHandle
from baton_engine.collectives.shared_memory_collective import SharedMemoryCollective
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.memory.shared_memory import SharedMemory
from baton_engine.model.loading import DTYPES, LoadedModel, load_model
from baton_engine.ranks.byte_ring import RingReader, RingWriter
from baton_engine.ranks.checkpoint_digest import checkpoint_digest
from baton_engine.ranks.planned_masks import PlannedMasks
from baton_engine.ranks.rank_ends import RankEnds, RankParts
from baton_engine.ranks.rank_frames import (
    KV_DTYPES,
    LayersWritten,
    LoadShare,
    MakeRunner,
    RankCrashed,
    RankFrame,
    RankReady,
    RankRefused,
    RunStep,
    ShareLoaded,
    StepDone,
    StepMasks,
    ToRank,
    WatchLayers,
    decode_to_rank,
    encode_frame,
)
from baton_engine.ranks.stage_links import RingRelay
from baton_engine.ranks.stage_plans import without_draws
from baton_engine.running.runner import ModelRunner
from baton_engine.scheduling.step_plan import StepResult
from baton_wire.log_format import chosen_format, configure_logging
from baton_wire.models.errors import ModelError
from baton_wire.models.sharding.stages import stage_shares

log = logging.getLogger("baton.rank")

BEAT_S: Final = 0.25
IDLE_S: Final = 3_600.0
"""A rank may be idle for ever; its other thread watches the worker's process."""
LOOK_S: Final = 20e-6
"""A rank whose GPU computes looks so often for the next plan."""
REPORT_S: Final = 60.0
"""The worker's process reads reports at once."""
CPU: Final = torch.device("cpu")

Kind = TypeVar("Kind")


class Rank:
    """One rank, in the thread that carries out its plans."""

    def __init__(self, share: RankShare, parts: RankParts) -> None:
        self._share, self._ends, self._links = share, parts.ends, parts.links
        self._reader, self._writer = RingReader(parts.ends.orders), RingWriter(parts.ends.reports)
        self._is_reporting = threading.Lock()
        """On a GPU a thread of its own reports layers."""
        self._host = SharedMemoryCollective(share, parts.sums)
        self._collective: Collective = self._host
        self._masks = PlannedMasks(self._receive_masks)
        self._held: ToRank | None = None
        """A frame that came during a step and waits for the step's end."""
        self._draws = True
        """False in stages that have no head."""

    def start(self) -> ModelRunner:
        """Load the share and make the runner, as the worker orders. Raises ModelError and MemoryError."""
        order = _expect(self._receive(), LoadShare)
        loaded = self._load(order)
        model_hash = loaded.model_hash if self._share.rank == 0 else None
        free_bytes = torch.cuda.mem_get_info(loaded.device)[0] if loaded.device.type == "cuda" else None
        self.report(ShareLoaded(checkpoint_digest(order.model), model_hash, loaded.config.generates, free_bytes))
        return self._make_runner(loaded, _expect(self._receive(), MakeRunner))

    def carry_out_plans(self, runner: ModelRunner) -> NoReturn:
        """Carry out plans until this process is killed."""
        while True:
            match self._receive():
                case RunStep() as step if self._draws:
                    self._carry_out(runner, step)
                case RunStep() as step:
                    self._pass(runner, step)
                case WatchLayers():
                    runner.watch_layers(lambda step, layers: self.report(LayersWritten(step, layers)))
                case frame:
                    raise RankLostError(f"{type(frame).__name__} came between two steps")

    def report(self, frame: RankFrame) -> None:
        with self._is_reporting:
            self._writer.send(encode_frame(frame), REPORT_S)

    def _carry_out(self, runner: ModelRunner, step: RunStep) -> None:
        """Carry out a step, and those whose plans come meanwhile: a GPU has the next one launched before it is done."""
        self._launch(runner, step)
        in_flight = 1
        while in_flight:
            ahead = self._take_ahead(runner) if in_flight == 1 else None
            if ahead is not None:
                self._launch(runner, ahead)
                in_flight += 1
                continue
            result = runner.collect()
            self._collective.check()
            self._report_result(result)
            in_flight -= 1

    def _pass(self, runner: ModelRunner, step: RunStep) -> None:
        """Carry out a step of a stage that draws nothing."""
        runner.launch(without_draws(step.plan))
        if step.is_masked:
            self._receive_masks()
        self.report(StepDone(runner.collect().step, None))

    def _launch(self, runner: ModelRunner, step: RunStep) -> None:
        self._masks.begin(is_masked=step.is_masked)
        runner.launch(step.plan)

    def _take_ahead(self, runner: ModelRunner) -> RunStep | None:
        """The next plan, if it comes before the present step is done and can be launched without the step's result."""
        while not runner.is_done():
            if self._held is None and (data := self._reader.take()) is not None:
                self._held = decode_to_rank(data)
            if self._held is None:
                time.sleep(LOOK_S)
                continue
            if not isinstance(self._held, RunStep) or self._held.is_masked:
                return None
            step, self._held = self._held, None
            return step
        return None

    def _load(self, order: LoadShare) -> LoadedModel:
        torch.set_num_threads(order.threads)
        dtype, device = None if order.dtype is None else DTYPES[order.dtype], CPU
        if order.gpus:
            device = torch.device("cuda", order.gpus[self._share.rank])
            torch.cuda.set_device(device)
            self._collective = DeviceCollective(self._host, device)
        if order.layers is None:
            return load_model(order.model, dtype, device, order.max_context_tokens, collective=self._collective)
        self._collective = SINGLE_RANK
        relay = RingRelay(stage_shares(order.layers, self._share.ranks)[self._share.rank], self._links)
        self._draws = relay.share.is_last
        return load_model(order.model, dtype, device, order.max_context_tokens, relay=relay)

    def _make_runner(self, loaded: LoadedModel, order: MakeRunner) -> ModelRunner:
        kv_dtype = loaded.dtype if order.kv_dtype is None else KV_DTYPES[order.kv_dtype]
        geometry = kv_geometry(loaded.share_config, kv_dtype, order.block_tokens)
        if loaded.device.type == "cpu":
            memory = SharedMemory(self._ends.pool, order.blocks * geometry.block_bytes)
            memory.close_descriptor()
            pool, handle = KvPool(geometry, order.blocks, kv_dtype, CPU, memory=memory.bytes), None
        else:
            pool = KvPool(geometry, order.blocks, kv_dtype, loaded.device, with_checksums=False)
            handle = DeviceMemoryHandle.of(pool.tensor).to_bytes()
        runner = ModelRunner(
            *(loaded, pool, order.max_slots, self._masks if self._draws else None),
            decodes=order.decodes,
            hands_over=order.hands_over,
            ended=self._await_stage,
        )
        self._collective.check()
        self.report(RankReady(handle))
        return runner

    def _await_stage(self, stage: str) -> None:
        """Wait until all ranks have ended a stage of the start: kernels wait for other ranks far shorter than one may
        take longer to compile."""
        self._host.all_gather(torch.zeros(1))

    def _report_result(self, result: StepResult) -> None:
        drawn = array("q", [number for entry in result.tokens for number in (entry.slot, *entry.ids)])
        counts = self._share.rank == (self._share.ranks - 1 if self._links else 0)
        self.report(StepDone(result.step, zlib.crc32(drawn.tobytes()), result if counts else None))

    def _receive(self) -> ToRank:
        if self._held is not None:
            held, self._held = self._held, None
            return held
        while (data := self._reader.receive(IDLE_S)) is None:
            pass
        return decode_to_rank(data)

    def _receive_masks(self) -> StepMasks:
        return _expect(self._receive(), StepMasks)


def _expect(frame: ToRank, kind: type[Kind]) -> Kind:
    if not isinstance(frame, kind):
        raise RankLostError(f"{type(frame).__name__} came where {kind.__name__} was due")
    return frame


def run_rank(number: int, ranks: int, parent: int, parts: RankParts) -> int:
    """Run the rank to its end and return the process's exit status."""
    configure_logging(os.environ.get("BATON_LOG_LEVEL", "INFO"), chosen_format(None, os.environ))
    rank = Rank(RankShare(number, ranks), parts)
    threading.Thread(target=_beat, args=(parts.ends, parent), name="beat", daemon=True).start()
    try:
        try:
            runner = rank.start()
        except (ModelError, MemoryError) as error:
            rank.report(RankRefused(str(error) or "out of memory", is_memory=isinstance(error, MemoryError)))
        else:
            rank.carry_out_plans(runner)
    except Exception as error:  # the outermost loop of this process
        log.exception("rank %d failed", number)
        rank.report(RankCrashed(f"{type(error).__name__}: {error}".partition("\n")[0]))
    return 1


def _beat(ends: RankEnds, parent: int) -> None:
    """Give signs of life, and end this process when the worker's process is gone."""
    while os.getppid() == parent:
        ends.beats.add()
        time.sleep(BEAT_S)
    os._exit(1)
