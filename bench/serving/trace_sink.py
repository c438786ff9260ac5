"""A collector that takes traces over HTTP and forgets them, so that a gateway under measurement can export its own."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from aiohttp import web
from bench.serving.echo_server import serve

MAX_BODY_BYTES = 64 << 20


async def take(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(content_type="application/x-protobuf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--announce", type=Path, required=True)
    options = parser.parse_args()
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/traces", take)
    asyncio.run(serve(app, options.announce))


if __name__ == "__main__":
    main()
