"""`python -m baton_gateway`: settings, port, process. Exit codes: 0 stopped and drained, 2 bad
configuration, 1 crash.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from baton_gateway.server import GatewayServer, bind
from baton_gateway.settings import Settings, SettingsError, parse_settings
from baton_kv_transfer.errors import AuthenticationError
from baton_kv_transfer.keys import KeyDirectory


def main(argv: list[str] | None = None) -> int:
    try:
        settings = parse_settings(sys.argv[1:] if argv is None else argv)
        logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
        KeyDirectory(settings.keys).current()
        return asyncio.run(_serve(settings))
    except (SettingsError, AuthenticationError) as error:
        print(f"baton-gateway: {error}", file=sys.stderr)
        return 2


async def _serve(settings: Settings) -> int:
    try:
        listening = bind(settings.host, settings.port)
        listening.listen(1024)
    except OSError as error:
        raise SettingsError(f"--listen: {settings.host}:{settings.port}: {error.strerror or error}") from error
    try:
        server = GatewayServer(settings)
    except ValueError as error:
        raise SettingsError(f"--api-keys: {error}") from error
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await server.start(listening)
    if settings.announce is not None:
        announce(settings.announce, settings.host, listening.getsockname()[1], None)
    await stopped.wait()
    await server.stop()
    return 0


def announce(path: Path, host: str, port: int, admin_port: int | None) -> None:
    """Write where this gateway listens, whole or not at all."""
    content = {"pid": os.getpid(), "role": "gateway", "host": host, "port": port, "admin_port": admin_port}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
