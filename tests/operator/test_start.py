"""The start of the process, as the kubelet's probes see it."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from baton_testing.processes.child_process import get_status, wait_for

IMAGE = "example.com/baton@sha256:" + "0" * 64


def test_without_its_api_server_it_lives_and_says_what_it_waits_for(tmp_path: Path) -> None:
    """Ended for it, it would wait for the kubelet's back-off behind the server's return."""
    at = f"http://127.0.0.1:{(port := free_port())}"
    with operator(tmp_path, at) as (process, health):
        assert wait_for(lambda: get_status(f"{health}/health/live"), "an answer", 60) == 200
        assert ready(health) == (503, f"waits for the API server at {at}; the log says why")
        assert get_status(f"{health}/metrics") == 200
        with answering(port):
            wait_for(lambda: ready(health)[0] == 200 or None, "a ready operator", 60)
        assert process.poll() is None


def test_told_to_stop_while_it_waits_it_stops(tmp_path: Path) -> None:
    with operator(tmp_path, f"http://127.0.0.1:{free_port()}") as (process, health):
        wait_for(lambda: get_status(f"{health}/health/live"), "an answer", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_it_makes_its_master_key_as_soon_as_it_may_and_says_what_it_waits_for(tmp_path: Path) -> None:
    at, secrets = f"http://127.0.0.1:{(port := free_port())}", SecretsServer()
    with operator(tmp_path, at, "--master-key-secret=masters") as (_, health), answering(port, secrets.handler()):
        wait_for(lambda: get_status(f"{health}/health/live"), "an answer", 60)
        wait_for(lambda: "waits for the master keys: " in ready(health)[1] or None, "a reason", 60)
        assert secrets.made == []
        secrets.is_allowed = True
        wait_for(lambda: ready(health)[0] == 200 or None, "a ready operator", 60)
    (made,) = secrets.made
    assert made["metadata"]["name"] == "masters"
    assert {name: len(base64.b64decode(key)) for name, key in made["data"].items()} == {"first": 64}


def test_with_json_logs_every_line_is_an_object(tmp_path: Path) -> None:
    at, log = f"http://127.0.0.1:{(port := free_port())}", tmp_path / "log"
    with operator(tmp_path, at, log=log, BATON_LOG_FORMAT="json") as (process, health):
        wait_for(lambda: get_status(f"{health}/health/live"), "an answer", 60)
        with answering(port):
            wait_for(lambda: ready(health)[0] == 200 or None, "a ready operator", 60)
            wait_for(lambda: "kopf: the server has no" in log.read_text() or None, "a line about kopf", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) > 2
    assert all({"time", "level", "logger", "message"} == entry.keys() for entry in entries)


@contextlib.contextmanager
def operator(
    folder: Path, server: str, keys_flag: str = "", log: Path | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process, and where it tells how it is. `log`: file for its lines; None: standard error."""
    keys, config, port = folder / "keys", folder / "kubeconfig", free_port()
    keys.mkdir()
    (keys / "first").write_text("m" * 48, encoding="ascii")
    named = {"name": "a", "cluster": {"server": server}, "user": {}, "context": {"cluster": "a", "user": "a"}}
    parts = {plural: [named] for plural in ("clusters", "users", "contexts")}
    config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "a", **parts}))
    command = [sys.executable, "-m", "baton_operator", "--namespaces=a", "--own-namespace=a", "--gateway-listen=none"]
    command += [f"--worker-image={IMAGE}", f"--gateway-image={IMAGE}", keys_flag or f"--master-keys={keys}"]
    command.append(f"--listen=127.0.0.1:{port}")
    with contextlib.ExitStack() as stack:
        lines = None if log is None else stack.enter_context(log.open("wb"))
        variables = {**os.environ, "KUBECONFIG": str(config), **environment}
        process = stack.enter_context(subprocess.Popen(command, env=variables, stderr=lines))
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextlib.contextmanager
def answering(port: int, handler: type[http.server.BaseHTTPRequestHandler] | None = None) -> Iterator[None]:
    """A server that knows its version and what its handler knows."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler or Versioned) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(30)


class Versioned(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200 if self.path == "/version" else 404, {"gitVersion": "v1.33.0"})

    def answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what it is asked is no matter."""


class SecretsServer:
    """A server that takes Secrets once that is allowed."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.made: list[dict[str, Any]] = []

    def handler(self) -> type[Versioned]:
        secrets = self

        class Handler(Versioned):
            def do_GET(self) -> None:
                if "/secrets/" not in self.path:
                    super().do_GET()
                elif secrets.is_allowed:
                    self.answer(200 if secrets.made else 404, secrets.made[0] if secrets.made else {})
                else:
                    self.answer(403, {"reason": "Forbidden", "message": "secrets is forbidden"})

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if "/secrets" in self.path:
                    secrets.made.append(json.loads(content))
                    self.answer(201, secrets.made[-1])
                else:
                    self.answer(404, {})

        return Handler


def ready(health: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{health}/health/ready", timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
