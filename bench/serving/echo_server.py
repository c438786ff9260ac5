"""A bare aiohttp server: reads the same JSON, answers at once or in as many timed pieces. The gateway's yardstick."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from aiohttp import web

PIECE = {
    "id": "cmpl-0123456789abcdef",
    "object": "text_completion",
    "created": 1_700_000_000,
    "model": "null",
    "choices": [{"index": 0, "text": " baton", "logprobs": None, "finish_reason": None}],
}


def application(step_s: float) -> web.Application:
    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return web.json_response(PIECE)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        due = loop.time()
        for _ in range(body["max_tokens"]):
            await response.write(b"data: " + json.dumps(PIECE).encode() + b"\n\n")
            due = max(due + step_s, loop.time())
            await asyncio.sleep(due - loop.time())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    return app


async def serve(app: web.Application, announce: Path) -> None:
    """Serve on any port of the loopback, which the file `announce` then names, until the process ends."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    announce.with_suffix(".draft").write_text(json.dumps({"port": runner.addresses[0][1]}))
    announce.with_suffix(".draft").replace(announce)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--announce", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()
    asyncio.run(serve(application(options.step_ms / 1e3), options.announce))


if __name__ == "__main__":
    main()
