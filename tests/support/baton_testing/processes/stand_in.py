"""Small real processes that keep the announce-file contract, for tests of the supervision alone.

`write_stand_ins` makes a directory which, first on PYTHONPATH, lets `python -m baton_prefill_worker` and its siblings
start these. The environment says what they do: BATON_STAND_IN maps a role to one of the behaviours below.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODULES = {"baton_prefill_worker": "prefill", "baton_decode_worker": "decode", "baton_gateway": "gateway"}
VARIABLE = "BATON_STAND_IN"
BAD_CONFIGURATION = "bad-configuration"
CRASH = "crash"
DEAF = "deaf"
"""Ignores SIGTERM."""
SILENT = "silent"
"""Never announces itself."""
PARENT = "parent"
"""Starts a child of its own that ignores SIGTERM, and writes its process id next to the announce file."""


def write_stand_ins(directory: Path) -> None:
    """Packages named like the real ones that run this file; everything but their `__main__` is still the real one."""
    for module, role in MODULES.items():
        package = directory / module
        package.mkdir()
        extend = "from pkgutil import extend_path\n\n__path__ = extend_path(__path__, __name__)\n"
        (package / "__init__.py").write_text(extend)
        (package / "__main__.py").write_text(f"from baton_testing.processes.stand_in import main\n\nmain({role!r})\n")


def main(role: str) -> None:
    """Be a process of this role until SIGTERM."""
    flags = {
        name: value for name, _, value in (argument.removeprefix("--").partition("=") for argument in sys.argv[1:])
    }
    behaviour = json.loads(os.environ.get(VARIABLE, "{}")).get(role)
    announce = Path(flags["announce"])
    print(f"stand-in {role} says hello", flush=True)
    if behaviour == BAD_CONFIGURATION:
        print(f"baton-{role}: --model: nothing here", file=sys.stderr)
        sys.exit(2)
    if behaviour == CRASH:
        raise SystemExit("it broke")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == DEAF else _end)
    if behaviour == PARENT:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        announce.with_suffix(".child").write_text(str(child.pid))
    _serve(role, flags, announce, is_silent=behaviour == SILENT)


def _end(number: int, frame: object) -> None:
    os._exit(0)


def _serve(role: str, flags: dict[str, str], announce: Path, is_silent: bool) -> None:
    host, _, port = flags["listen"].rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), _Handler)
    server.daemon_threads = True
    _Handler.flags = flags
    announcement = {"pid": os.getpid(), "role": role, "epoch": "00" * 16, "host": host, "port": server.server_port}
    announcement |= {"pair_port": 1 + server.server_port % 65_000 if role == "decode" else None}
    if not is_silent:
        temporary = announce.with_suffix(".new")
        temporary.write_text(json.dumps(announcement))
        temporary.replace(announce)
    server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    flags: dict[str, str]

    def do_GET(self) -> None:
        if self.path == "/health/routable":
            files = (self.flags[f"{role}-discovery"].removeprefix("file:") for role in ("prefill", "decode"))
            self._answer(200 if all(json.loads(Path(file).read_bytes()) for file in files) else 503, {})
        elif self.path == "/health/live":
            self._answer(200, {})
        else:
            self._answer(404, {})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""
