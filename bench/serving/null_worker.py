"""A prefill and a decode worker without a model, in one process: they speak the wire protocol on a clock.

For measuring the gateway alone. Run by `bench gateway_cost`; writes the addresses of both ends to the
announce file.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from bench.engine.subjects import TINY

from baton_wire.keys import KeyDirectory
from baton_wire.messages.gateway_link import Cancel, Hello, Message, Prefill, Reserve, Tokens, WorkerState
from baton_wire.messages.values import WIRE_VERSION, Finish, PairFingerprint, Role, TokenEntry
from baton_worker.building.bundle_files import TokenizerBundle, read_bundle
from baton_worker.serving.gateway_links import GatewayLink, GatewayLinks

BLOCKS = 1 << 16
FIRST_WORD, WORDS = 300, 600
"""Token ids that stand for pieces of words in the tiny model's vocabulary."""


@dataclass(slots=True)
class Talk:
    """One choice that is being answered."""

    link: GatewayLink
    request: bytes
    attempt: int
    choice: int
    tokens_left: int
    index: int = 0

    def next_entry(self) -> TokenEntry:
        token = FIRST_WORD + (self.index * 7 + self.choice) % WORDS
        finish = Finish.LENGTH if self.tokens_left == 1 else None
        entry = TokenEntry(self.request, self.attempt, self.choice, self.index, (token,), None, finish)
        self.index += 1
        self.tokens_left -= 1
        return entry


class NullWorker:
    """Answers every request that a gateway sends: as P one token, as D one token a step to everybody."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._talks: list[Talk] = []
        self._steps = 0

    def handle(self, link: GatewayLink, message: Message) -> None:
        if isinstance(message, Prefill):
            talks = self._open(link, message)
            link.send(Tokens(0, tuple(self._first(talk, message.sampling.max_tokens) for talk in talks)))
        elif isinstance(message, Reserve):
            if message.sampling.max_tokens > 1 or message.prefill_epoch is None:
                self._talks += self._open(link, message)
        elif isinstance(message, Cancel):
            gone = (message.request, message.attempt)
            self._talks = [talk for talk in self._talks if (talk.request, talk.attempt) != gone]

    def link_lost(self, link: GatewayLink) -> None:
        self._talks = [talk for talk in self._talks if talk.link is not link]

    def state(self) -> WorkerState:
        return WorkerState(False, len(self._talks), 0, 0, BLOCKS, 0, 0, 0.0)

    def step(self) -> None:
        """One token for everybody: one frame a gateway, as a real engine step sends it."""
        frames: dict[GatewayLink, list[TokenEntry]] = {}
        for talk in self._talks:
            frames.setdefault(talk.link, []).append(talk.next_entry())
        for link, entries in frames.items():
            link.send(Tokens(self._steps, tuple(entries)))
        self._steps += 1
        self._talks = [talk for talk in self._talks if talk.tokens_left > 0]

    @staticmethod
    def _open(link: GatewayLink, message: Prefill | Reserve) -> list[Talk]:
        left = message.sampling.max_tokens
        return [Talk(link, message.request, message.attempt, choice, left) for choice in message.choices]

    @staticmethod
    def _first(talk: Talk, max_tokens: int) -> TokenEntry:
        talk.tokens_left = max_tokens
        return talk.next_entry()


def hello(role: Role, bundle: TokenizerBundle) -> Hello:
    """What a real worker of the tiny model would say, with a model hash of its own."""
    digest = hashlib.sha256(b"null").hexdigest()
    return Hello(
        role=role,
        epoch=secrets.token_bytes(16),
        fingerprint=PairFingerprint(WIRE_VERSION, digest, "float32", "float32", 4, 2, 32, digest, bundle.sha256),
        template_hash="null",
        pair_port=1 if role is Role.DECODE else None,
        served_name="null",
        vocab_size=1_024,
        max_context_tokens=65_536,
        max_choices=8,
        block_tokens=16,
        blocks_total=BLOCKS,
        bundle_hash=bundle.sha256,
        bundle_bytes=len(bundle.data),
    )


async def serve(keys: Path, announce: Path, step_s: float) -> None:
    bundle = read_bundle(TINY)
    ports = {}
    workers = [NullWorker(Role.PREFILL), NullWorker(Role.DECODE)]
    async with asyncio.TaskGroup() as tasks:
        for worker in workers:
            links = GatewayLinks(hello(worker.role, bundle), bundle.data, KeyDirectory(keys), worker)
            application = web.Application()
            application.router.add_get("/link", links.accept)
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            ports[worker.role.value] = runner.addresses[0][1]
            tasks.create_task(links.report_state())
        announce.with_suffix(".draft").write_text(json.dumps(ports))
        announce.with_suffix(".draft").replace(announce)
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            workers[1].step()
            due = max(due + step_s, loop.time())
            await asyncio.sleep(due - loop.time())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=Path, required=True)
    parser.add_argument("--announce", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()
    asyncio.run(serve(options.keys, options.announce, options.step_ms / 1e3))


if __name__ == "__main__":
    main()
