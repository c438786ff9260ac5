"""Fake workers with their key directory and discovery files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from baton_testing.gateway.fake_worker import FakeWorker, Script
from baton_testing.gateway.made_tokenizers import MadeTokenizer
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.messages.values import Role


@dataclass
class FakePool:
    root: Path
    tokenizer: MadeTokenizer
    script: Script
    prefill: list[FakeWorker] = field(default_factory=list)
    decode: list[FakeWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (self.root / "keys").exists():
            (self.root / "keys").mkdir()
            write_new_key(self.root / "keys", "k1")
        self.keys = KeyDirectory(self.root / "keys")

    async def add(self, role: Role, **options: object) -> FakeWorker:
        worker = FakeWorker(role, self.tokenizer, self.keys, self.script, **options)  # type: ignore[arg-type]
        await worker.start()
        (self.prefill if role is Role.PREFILL else self.decode).append(worker)
        for member in self.workers:
            member.pool = self.workers
        self.announce()
        return worker

    @property
    def workers(self) -> list[FakeWorker]:
        return [*self.prefill, *self.decode]

    def announce(self) -> None:
        for name, workers in (("prefill", self.prefill), ("decode", self.decode)):
            content = [{"host": "127.0.0.1", "port": worker.port} for worker in workers]
            (self.root / f"{name}.json").write_text(json.dumps(content))

    @property
    def flags(self) -> list[str]:
        return pool_flags(self.root)

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.stop()


def pool_flags(root: Path) -> list[str]:
    """The gateway flags that lead to the pool in this folder."""
    return [
        f"--keys={root / 'keys'}",
        *(f"--{role}-discovery=file:{root / role}.json" for role in ("prefill", "decode")),
    ]
