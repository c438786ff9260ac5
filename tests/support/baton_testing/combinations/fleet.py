"""Prefill and decode workers in one process: the production services, engines, models and transfers over loopback.

Engines are turned by hand, everything runs in one loop, and a request's own machine decides what happens next. So a
cell takes some tens of milliseconds, and a worker dies exactly where a cell wants it to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, cast

import torch

from baton_decode_worker.service import DecodeService
from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_gateway.errors import no_workers
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import (
    Action,
    Admitted,
    Arrived,
    Deliver,
    End,
    Event,
    LegEnded,
    LifeRules,
    NoRoute,
    PickRoute,
    Prepare,
    Prepared,
    Prompt,
    Routed,
    Send,
    Tick,
    WorkerLost,
)
from baton_gateway.requests.retry_budget import RetryBudget
from baton_gateway.workers.route import Route
from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_prefill_worker.service import PrefillService
from baton_testing.kv_transfer.builders import FAST, fingerprint
from baton_testing.simulation.worker import no_metrics
from baton_wire.discovery import Endpoint
from baton_wire.keys import KeyDirectory
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.gateway_link import LegFailed, Tokens
from baton_wire.messages.values import Address, Message, SamplingParams, pack_ids
from baton_worker.building.parts import RequestLimits
from baton_worker.serving.engine_thread import EngineThread
from baton_worker.serving.gateway_links import GatewayLink

BLOCK_TOKENS: Final = 16
CONTEXT_TOKENS: Final = 128
SLOTS: Final = 8
DEADLINE_S: Final = 30.0
"""Far more than a cell takes, on a machine that others use too."""
PAUSE_S: Final = 0.0005
TRANSFER: Final[TransferConfig] = replace(
    FAST, kept_s=20.0, heartbeat_s=0.5, liveness=LivenessConfig(8.0, 16.0), handshake_s=10.0, link_wait_s=10.0
)


class HangsError(Exception):
    """Nothing ended in time."""


@dataclass(slots=True, eq=False)
class Told:
    """A gateway's link as a worker sees it."""

    inbox: list[tuple[bytes, Message]]
    epoch: bytes

    def send(self, message: Message) -> None:
        self.inbox.append((self.epoch, message))


class Worker:
    """The service and the transfer of one role over an engine of its own."""

    def __init__(self, fleet: Fleet, epoch: bytes, *, blocks: int, step_tokens: int, is_prefill: bool) -> None:
        model = fleet.model
        self.epoch, self.is_alive, self.is_stopped = epoch, True, False
        geometry = kv_geometry(model.config, model.dtype, BLOCK_TOKENS)
        blocks *= len(geometry.windows)
        pool = KvPool(geometry, blocks, model.dtype, torch.device("cpu"))
        self.scheduler = Scheduler(
            EngineConfig(blocks, BLOCK_TOKENS, SLOTS, CONTEXT_TOKENS, step_tokens, windows=geometry.windows)
        )
        runner = ModelRunner(model, pool, SLOTS, RowMasks(fleet.compiler, SLOTS), decodes=not is_prefill)
        loop = asyncio.get_running_loop()
        make = PrefillService if is_prefill else DecodeService
        limits = RequestLimits(model.config.vocab_size, CONTEXT_TOKENS, 4)
        self.service: PrefillService | DecodeService = make(limits, no_metrics(), loop)
        stepper = Stepper(self.scheduler, runner)
        self.engine = EngineThread(
            self.scheduler, stepper, self.service.on_events, self.service.on_cancel, lambda error: None
        )
        self.service.attach(self.engine)
        self.link = cast(GatewayLink, Told(fleet.inbox, epoch))
        shape = fingerprint(
            layers=geometry.layers, kv_heads=geometry.kv_heads, head_dim=geometry.head_dim, model_hash=model.model_hash
        )
        parts = TransferParts(epoch=epoch, fingerprint=shape, geometry=geometry, keys=fleet.keys, config=TRANSFER)
        self.transfer: PrefillTransfer | DecodeTransfer
        if isinstance(self.service, PrefillService):
            self.transfer = self.service.transfer = PrefillTransfer(parts, [pool], self.service)
        else:
            memory = LandingMemory(4 * geometry.block_bytes * geometry.blocks_held(CONTEXT_TOKENS))
            self.transfer = self.service.transfer = DecodeTransfer(
                parts, [pool], self.service, memory, host="127.0.0.1"
            )

    def turn(self) -> bool:
        return self.is_alive and not self.is_stopped and self.engine.turn()

    @property
    def address(self) -> Address:
        assert isinstance(self.transfer, DecodeTransfer)
        return Address("127.0.0.1", self.transfer.port)

    async def die(self) -> None:
        """As killed: its connections break, and nothing more is sent."""
        self.is_alive = False
        assert isinstance(self.transfer, DecodeTransfer)
        await self.transfer._acceptor.stop()


@dataclass(slots=True, eq=False)
class Client:
    """One request, as its gateway's machine sees it."""

    life: RequestLife
    prompt: Prompt
    outputs: dict[int, list[int]] = field(default_factory=dict)
    end: End | None = None
    sent: list[str] = field(default_factory=list)
    """Kinds of the messages to workers."""

    @property
    def fewest(self) -> int:
        return min((len(ids) for ids in self.outputs.values()), default=0)


class Fleet:
    """P, D1 and D2; `choose` says who takes a run."""

    def __init__(self, model: LoadedModel, compiler: GrammarCompiler, keys: KeyDirectory) -> None:
        self.model, self.compiler, self.keys = model, compiler, keys
        self.inbox: list[tuple[bytes, Message]] = []
        self.workers: dict[bytes, Worker] = {}
        self.clients: list[Client] = []
        self.by_run: dict[bytes, Client] = {}

    async def start(self, *, decode_blocks: int, prefill_step: int, decode_step: int) -> None:
        sizes = {"P": (64, prefill_step), "D1": (decode_blocks, decode_step), "D2": (64, decode_step)}
        for name, (blocks, step) in sizes.items():
            epoch = name.encode().ljust(16, b".")
            worker = Worker(self, epoch, blocks=blocks, step_tokens=step, is_prefill=name == "P")
            self.workers[epoch] = worker
            await worker.transfer.start()
        decodes = [self.named("D1"), self.named("D2")]
        prefill = self.named("P").transfer
        assert isinstance(prefill, PrefillTransfer)
        prefill.discovered([Endpoint(worker.address.host, worker.address.port) for worker in decodes])
        await self.until(lambda: prefill.stats().links == len(decodes))

    async def stop(self) -> None:
        await asyncio.gather(*(worker.transfer.stop() for worker in self.workers.values()))

    def named(self, name: str) -> Worker:
        return self.workers[name.encode().ljust(16, b".")]

    def ask(self, number: int, tokens: tuple[int, ...], sampling: SamplingParams, choices: int, alone: bool) -> Client:
        """`alone`: the decode worker computes the prompt too."""
        life = RequestLife(
            number.to_bytes(16), choices, time.monotonic() + DEADLINE_S, LifeRules(), RetryBudget(), time.monotonic()
        )
        client = Client(life, Prompt(pack_ids(tokens), sampling, ""))
        self._alone = alone
        self.clients.append(client)
        self._feed(client, Admitted())
        return client

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Turn everything until then. Raises HangsError."""
        give_up_s = time.monotonic() + DEADLINE_S
        while not is_done():
            if time.monotonic() > give_up_s:
                raise HangsError
            moved = [worker.turn() for worker in self.workers.values()]
            await asyncio.sleep(0)
            self._hear()
            if not any(moved):
                await asyncio.sleep(PAUSE_S)
                for client in self.clients:
                    if client.life.wake_at <= time.monotonic():
                        self._feed(client, Tick())

    async def kill(self, name: str) -> None:
        worker = self.named(name)
        await worker.die()
        self._hear()
        for client in self.clients:
            self._feed(client, WorkerLost(worker.epoch))

    def _hear(self) -> None:
        messages, self.inbox[:] = list(self.inbox), []
        for epoch, message in messages:
            if not self.workers[epoch].is_alive:
                continue
            if isinstance(message, Tokens):
                for entry in message.entries:
                    if (client := self.by_run.get(entry.request)) is not None:
                        self._feed(client, Arrived(epoch, entry))
            elif isinstance(message, LegFailed) and (client := self.by_run.get(message.request)) is not None:
                self._feed(client, LegEnded(epoch, message))

    def _feed(self, client: Client, event: Event) -> None:
        for action in client.life.handle(event, time.monotonic()):
            self._carry_out(client, action)

    def _carry_out(self, client: Client, action: Action) -> None:
        match action:
            case Prepare():
                self._feed(client, Prepared((client.prompt,)))
            case PickRoute():
                self.by_run[action.run] = client
                self._feed(client, self._route(action))
            case Send(epoch, message):
                client.sent.append(type(message).__name__)
                worker = self.workers[epoch]
                if worker.is_alive:
                    worker.service.handle(worker.link, message)
            case Deliver(choice, ids):
                client.outputs.setdefault(choice, []).extend(ids)
            case End():
                client.end = action
            case _:
                raise AssertionError(action)

    def _route(self, action: PickRoute) -> Event:
        living = [name for name in ("D1", "D2") if self.named(name).is_alive]
        if not living:
            return NoRoute(action.run, no_workers())
        decode = self.named(living[0])
        if self._alone:
            return Routed(action.run, Route(None, decode.epoch, None))
        return Routed(action.run, Route(self.named("P").epoch, decode.epoch, decode.address))
