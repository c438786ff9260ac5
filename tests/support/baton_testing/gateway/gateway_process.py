"""A gateway inside the test's own process, in front of a pool of fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial

from baton_gateway.openai_api.streaming_writer import StreamingWriter
from baton_gateway.server import SEND_BUFFER_BYTES, GatewayServer
from baton_gateway.settings import parse_settings
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeRequest
from baton_testing.gateway.made_tokenizers import MadeTokenizer, byte_level
from baton_wire.listening.sockets import bind
from baton_wire.messages.gateway_link import Tokens


@dataclass
class RunningGateway:
    server: GatewayServer
    pool: FakePool
    port: int

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def until_linked(self, workers: int) -> None:
        await until(lambda: len(list(self.server.table.all())) == workers)

    def take_step_by_step(self) -> None:
        """No worker of now makes a step before its last one is written to streams, however busy this machine is. Else
        the tokens of several steps may come together, and leave together."""
        relay = self.server.relay
        take, steps = relay.tokens, dict[bytes, int]()

        def tokens(epoch: bytes, frame: Tokens) -> None:
            take(epoch, frame)
            steps[epoch] = frame.step

        def may_step(epoch: bytes, last: int) -> bool:
            sinks = [live.sink for live in relay._by_ticket.values()]
            is_written = all(sink.is_written for sink in sinks if isinstance(sink, StreamingWriter))
            return is_written and steps.get(epoch, 0) == last

        setattr(relay, "tokens", tokens)  # noqa: B010
        for worker in self.pool.workers:
            worker.may_step = partial(may_step, worker.epoch)


@asynccontextmanager
async def running_gateway(pool: FakePool, *flags: str) -> AsyncIterator[RunningGateway]:
    """Linked to every worker of the pool when it is entered."""
    settings = parse_settings([*pool.flags, "--listen=127.0.0.1:0", "--drain-s=0", *flags])
    listening = bind("127.0.0.1", 0, send_buffer_bytes=SEND_BUFFER_BYTES)
    listening.listen()
    server = GatewayServer(settings)
    await server.start(listening)
    gateway = RunningGateway(server, pool, listening.getsockname()[1])
    try:
        await gateway.until_linked(len(pool.workers))
        yield gateway
    finally:
        await server.stop()


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Poll a condition. Raises TimeoutError."""
    for _ in range(int(timeout_s / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError("the condition did not come true")


ANSWER = "Grüße, the baton is handed over."


@cache
def tokenizer() -> MadeTokenizer:
    """The one that all fake workers of the gateway's tests share."""
    return byte_level()


def ids_of(text: str) -> list[int]:
    return list(tokenizer().tokenizer.encode(text, add_special_tokens=False).ids)


def answer(request: FakeRequest) -> list[int]:
    """The fixed answer, with the number of the choice behind it for all but the first."""
    return ids_of(ANSWER if request.choice == 0 else f"{ANSWER} {request.choice}")
