"""Ten situations: what clients complain of, what is wrong, and how it is planted in a running `baton up`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from baton_local.fleet.record import ProcessRecord, read_record
from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest
from campaigns.explained.asking import ask, chat_body
from campaigns.explained.delays import cold
from campaigns.explained.stage import DelayingProxy, ProxyLoop, stopped

KEYS = {"red": "red-team-key", "blue": "blue-team-key"}
SHORT, LONG = tiny_llama.GREETING[0], "Count to one hundred."
PADDING_BYTES = 1_200_000
SLOW_S = 0.4
NAME = "shop"


@dataclass(frozen=True, slots=True)
class Situation:
    """One situation."""

    complaint: str
    cause: str
    plant: Callable[[Scene], None]
    spec: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, int] | None = None
    """Limits of the tenant blue; None: there are no tenants."""
    has_large_tokenizer: bool = False


class Scene:
    """A running deployment, its load and what is planted in it."""

    def __init__(self, up: Up, ended: threading.Event) -> None:
        self.up = up
        self.ended = ended
        self.port = int(up.endpoint.rpartition(":")[2])

    @property
    def admin_port(self) -> int:
        return next(p.admin_port for p in self.processes("gateway") if p.admin_port is not None)

    def processes(self, role: str) -> list[ProcessRecord]:
        """The processes of a role."""
        return [process for process in read_record(self.up.run_dir).processes if process.role == role]

    def pids(self, role: str) -> list[int]:
        return [process.pid for process in self.processes(role) if process.pid is not None]

    def light_load(self) -> None:
        """Ask for a short answer twice a second, as the tenant red where there are tenants."""
        while not self.ended.wait(0.5):
            self.ask(chat_body(SHORT, max_tokens=12), "red")

    def ask(self, body: Mapping[str, Any], tenant: str = "red", **options: Any) -> None:
        """Ask, whatever becomes of it."""
        with contextlib.suppress(OSError, ValueError):
            ask(self.port, body, KEYS[tenant], **options)

    def prompt(self, tokens: int, max_tokens: int = 2, tenant: str = "blue") -> None:
        """Ask a prompt that no cache knows."""
        body = {"model": "tiny", "prompt": cold(tokens), "max_tokens": max_tokens, "temperature": 0, "stream": True}
        self.ask(body, tenant, path="/v1/completions")

    def lanes(self, count: int, work: Callable[[], object], pause_s: float = 0.0) -> None:
        """Do some work over and over in several threads, until the end."""

        def lane() -> None:
            while not self.ended.wait(pause_s):
                work()

        threads = [threading.Thread(target=lane, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @contextlib.contextmanager
    def slow_kv_link(self, delay_s: float) -> Iterator[None]:
        """Lead the KV link to the decode worker through a proxy whose pieces arrive late. A prefill worker that has
        linked it already starts anew."""
        path, proxy = self.up.run_dir.discovery("decode"), DelayingProxy()
        with ProxyLoop() as loop:
            rows = json.loads(path.read_text())
            for row in rows:
                row["pair_port"] = loop.start(proxy, row["pair_port"])
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(rows))
            draft.replace(path)
            for pid in self.pids("prefill"):
                os.kill(pid, signal.SIGKILL)
            with loop.slowed(proxy, delay_s):
                yield
            loop.stop(proxy)


def written_manifest(folder: Path, situation: Situation) -> Path:
    """Write the manifest of a situation."""
    pool = {"replicas": {"min": 1, "max": 1}, "engine": {"kvCacheMemory": "24Mi"}}
    spec: dict[str, Any] = {"prefill": pool, "decode": pool, "slo": SLO} | dict(situation.spec)
    if situation.has_large_tokenizer:
        model = shutil.copytree(tiny_llama.FOLDER, folder / "model")
        tokenizer = model / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text() + " " * PADDING_BYTES)
        spec["model"] = {"source": f"file://{model}", "servedName": "tiny", "maxContextTokens": 1024}
    if situation.limits is not None:
        spec["gateway"] = {"tenants": True, "limits": {"maxQueueDuration": "60s"}}
    documents = [manifest(NAME, **spec)]
    if situation.limits is not None:
        documents += [tenant("red", {}), tenant("blue", situation.limits)]
    path = folder / f"{NAME}.yaml"
    path.write_text("\n---\n".join(json.dumps(document) for document in documents))
    return path


def tenant(name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a tenant."""
    spec = {"apiKeys": [{"sha256": hashlib.sha256(KEYS[name].encode()).hexdigest()}], "limits": dict(limits)}
    head = {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMTenant"}
    return head | {"metadata": {"name": name, "namespace": "tests"}, "spec": spec}


# What goes wrong ------------------------------------------------------------------------------------------------------


def slow_link(scene: Scene) -> None:
    with scene.slow_kv_link(SLOW_S):
        scene.lanes(1, lambda: scene.prompt(200, 8), 0.5)


def held_prompts(scene: Scene) -> None:
    scene.lanes(12, lambda: scene.prompt(700))


def own_quota(scene: Scene) -> None:
    scene.lanes(3, lambda: scene.ask(chat_body(LONG, max_tokens=100), "blue"))


def killed_worker(scene: Scene) -> None:
    while not scene.ended.wait(8.0):
        for pid in scene.pids("decode"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def full_kv(scene: Scene) -> None:
    scene.lanes(8, lambda: scene.ask(chat_body(LONG, max_tokens=300), "blue"))


def cold_tokenizer(scene: Scene) -> None:
    while not scene.ended.wait(1.0):
        helpers = [
            child.pid
            for pid in scene.pids("gateway")
            for child in psutil.Process(pid).children(recursive=True)
            if any("tokenizer_main" in word for word in child.cmdline())
        ]
        with stopped(helpers):
            scene.ended.wait(1.5)


def slow_readers(scene: Scene) -> None:
    def read_slowly() -> None:
        fields = {"max_tokens": 300, "logprobs": True, "top_logprobs": 20}
        body = json.dumps(chat_body(LONG, **fields)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        with contextlib.suppress(OSError), socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.settimeout(60.0)
            client.connect(("127.0.0.1", scene.port))
            client.sendall(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body)
            while client.recv(4_096) and not scene.ended.wait(0.4):
                pass

    scene.lanes(2, read_slowly)


def wrong_size(scene: Scene) -> None:
    scene.lanes(32, lambda: scene.ask(chat_body(LONG, max_tokens=200), "blue"))


def long_prompt_in_front(scene: Scene) -> None:
    scene.lanes(1, lambda: scene.prompt(950), 1.5)


def old_configuration(scene: Scene) -> None:
    """Somebody raises a limit, with a mistake in the file: the old limit stays in force."""
    path = scene.up.runtime.parent / f"{NAME}.yaml"
    path.write_text(path.read_text().replace('"requestsPerMinute": 20', '"requestsPerMinute": "2000 please"'))
    scene.lanes(2, lambda: scene.ask(chat_body(SHORT, max_tokens=8), "blue"), 0.3)


SLO = {"ttft": {"target": "200ms", "percentile": 95}, "tpot": {"target": "25ms", "percentile": 95}}
_SMALL_KV = {"replicas": {"min": 1, "max": 1}, "engine": {"kvCacheMemory": "1Mi"}}
SITUATIONS = (
    Situation("chats are slow to begin", "the KV link to the decode worker is slow", slow_link),
    Situation("chats are slow to begin", "one client's prompts keep the prefill worker busy", held_prompts),
    Situation("team blue says that it waits", "blue's own limit", own_quota, limits={"maxConcurrent": 1}),
    Situation("answers stop in the middle for seconds", "the decode worker is killed again and again", killed_worker),
    Situation(
        "answers stop in the middle",
        "the decode worker has too little memory for KV",
        full_kv,
        {"decode": _SMALL_KV},
    ),
    Situation(
        "chats are slow to begin", "the tokenizer's process stands still", cold_tokenizer, has_large_tokenizer=True
    ),
    Situation("some answers take half a minute", "clients that read slowly", slow_readers),
    Situation("answers are slow", "the decode pool is too small and at its limit", wrong_size),
    Situation("now and then a chat is slow to begin", "long prompts are computed in front", long_prompt_in_front),
    Situation(
        "team blue is still refused after its limit was raised",
        "the edited file is invalid: the old limit is in force",
        old_configuration,
        limits={"requestsPerMinute": 20},
    ),
)
"""In the order of their numbers."""
