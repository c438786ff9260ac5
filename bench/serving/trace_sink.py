"""A collector that takes traces over HTTP and forgets them, so that a gateway under measurement can export its own."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from aiohttp import web

MAX_BODY_BYTES = 64 << 20


async def take(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(content_type="application/x-protobuf")


async def serve(announce: Path) -> None:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    announce.with_suffix(".draft").write_text(json.dumps({"port": runner.addresses[0][1]}))
    announce.with_suffix(".draft").replace(announce)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--announce", type=Path, required=True)
    asyncio.run(serve(parser.parse_args().announce))


if __name__ == "__main__":
    main()
