"""One side of a UCX pair as a process of its own: `python -m baton_testing.kv_transfer.ucx_child landing|writer FD`.

FD is this side's end of the life line. A landing side prints its descriptor, then `ended` once its peer's writes are
proven to have ended. A writer reads the descriptor from standard input, writes without pause, and says what happens.
"""

from __future__ import annotations

import asyncio
import mmap
import secrets
import socket
import sys

from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import DataConnection, SocketConnection
from baton_kv_transfer.transports.seam import Write
from baton_kv_transfer.transports.ucx.binding import UcxAgent
from baton_kv_transfer.transports.ucx.descriptor import unpack
from baton_kv_transfer.transports.ucx.landing import UcxLanding
from baton_kv_transfer.transports.ucx.thread import UcxThread
from baton_kv_transfer.transports.ucx.writer import UcxWriter, connect
from baton_testing.wire.sessions import sessions

REGION = 64 << 20
EPOCH = b"e" * 16
FAREWELL_S = 3.0
"""How long the other end of the life line may take to close."""


def say(text: str) -> None:
    print(text, flush=True)


async def land(life_line: SocketConnection) -> None:
    region = memoryview(mmap.mmap(-1, REGION))
    landing = UcxLanding(region, EPOCH, lambda link: say(f"ended {link}"), settle_s=0.2)
    await landing.start()
    landing.attach(DataConnection(life_line, sessions()[0]), b"", 1)
    say(landing.descriptor.hex())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    say(f"bytes {sum(region[::4096]) > 0}")
    await landing.stop()


async def write(life_line: SocketConnection) -> None:
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    target = unpack(bytes.fromhex(line.strip()), EPOCH, REGION)
    thread = UcxThread(lambda: UcxAgent(f"w-{secrets.token_hex(16)}", progress=False))
    await thread.start()
    lane = await thread.run(connect(target))
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    writer = UcxWriter(thread, target, life_line, lambda _: False, lost.set_result, lane, stall_s=1.0)
    source, ends = memoryview(bytearray(b"\1" * REGION)), 0

    def again(detail: str | None) -> None:
        nonlocal ends
        ends += 1
        if ends == 4:
            say(f"writing over {writer.lane}")
        if detail is None:
            writer.write(Write(1, source, (Extent(0, REGION),), (Extent(0, REGION),)), again)

    for _ in range(3):
        again(None)
    say(f"lost: {await lost}")
    for _ in range(int(FAREWELL_S / 0.05)):
        if writer.has_ended:
            break
        await asyncio.sleep(0.05)
    say(f"in flight {writer.in_flight}, over {writer.has_ended}")
    await thread.stop()


if __name__ == "__main__":
    end = SocketConnection(socket.socket(fileno=int(sys.argv[2])))
    asyncio.run(land(end) if sys.argv[1] == "landing" else write(end))
