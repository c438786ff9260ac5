"""Work on the folder of files: a disk that hangs, or a client that leaves in the middle of it, costs nobody else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from baton_gateway.batches.file_store import FileBounds, FileStore, StoredFile, Upload
from baton_gateway.batches.folder import TenantFolder
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_testing.gateway.raw_client import LOOPBACK, exchange, got
from baton_testing.gateway.three_tenants import BAD, GOOD, key_file

LISTS = 48
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)


@pytest.fixture
async def batching(pool: FakePool, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    flags = (f"--batch-folder={tmp_path / 'batches'}", f"--api-keys={key_file(tmp_path)}")
    async with running_gateway(pool, *flags) as gateway:
        yield gateway


class Gate:
    """Holds up calls in their threads until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = 0

    def around(self, call: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            if when(*arguments):
                self.entered += 1
                assert self.opened.wait(30)
            return call(*arguments)

        return held


def upload_head(length: int = 10_000) -> bytes:
    lines = (
        "POST /v1/files HTTP/1.1", "Host: a", f"Authorization: Bearer {BAD}", f"Content-Length: {length}",
        "Content-Type: multipart/form-data; boundary=x",
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def test_a_tenant_whose_files_hang_holds_up_no_other_tenant_and_no_other_thread(
    batching: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(FileStore, "list_all", gate.around(FileStore.list_all, lambda _, tenant: tenant == "bad"))
    bad = [asyncio.create_task(exchange(batching.port, got("/v1/files", BAD), 60)) for _ in range(LISTS)]
    try:
        await until(lambda: gate.entered > 0)
        await asyncio.sleep(0.2)
        assert (await exchange(batching.port, got("/v1/files", GOOD), 10))[0] == 200
        async with asyncio.timeout(10):
            await asyncio.to_thread(lambda: None)  # as answers that are encoded in a thread
    finally:
        gate.opened.set()
    assert {status for status, _ in await asyncio.gather(*bad)} == {200}


@pytest.mark.parametrize("method", ["open_upload", "open_content"])
async def test_a_client_that_leaves_while_its_file_is_opened_leaves_no_descriptor(
    batching: RunningGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    store, gate = batching.server.batches.files, Gate()  # type: ignore[union-attr]
    upload = store.open_upload("bad")
    file = upload.finish("a.jsonl", "batch", 3_600, FileBounds())
    upload.close()
    sent = upload_head() + FORM if method == "open_upload" else got(f"/v1/files/{file.id}/content", BAD)
    monkeypatch.setattr(FileStore, method, gate.around(getattr(FileStore, method)))
    await asyncio.sleep(0.1)
    before = under(tmp_path)
    _, writer = await asyncio.open_connection(LOOPBACK, batching.port)
    writer.write(sent)
    await until(lambda: gate.entered == 1)
    writer.transport.abort()
    await asyncio.sleep(0.2)
    gate.opened.set()
    await asyncio.sleep(0.2)
    await until(lambda: under(tmp_path) == before)
    assert not any(store.folder("bad").uploads.iterdir())


def under(folder: Path) -> list[str]:
    """The open files of this process in a folder."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(link for link in links if link.startswith(str(folder)) and "batches" in link)


async def test_bytes_are_never_written_to_a_descriptor_that_was_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor may be another tenant's file by then."""
    folder = TenantFolder(tmp_path, "acme")
    folder.make()
    upload, gate = Upload(folder, 100), Gate()
    monkeypatch.setattr(os, "write", gate.around(os.write, lambda number, _: number == upload._descriptor))
    writing = asyncio.create_task(asyncio.to_thread(upload.write, b"secret"))
    await until(lambda: gate.entered == 1)
    closing = asyncio.create_task(asyncio.to_thread(upload.close))
    await asyncio.sleep(0.1)
    assert not closing.done()
    gate.opened.set()
    await asyncio.gather(writing, closing)
    with pytest.raises(OSError, match="closed"):
        upload.write(b"more")
    with pytest.raises(OSError, match="closed"):
        upload.finish("a", "batch", 3_600, FileBounds())


def test_a_file_that_is_finished_while_its_upload_is_thrown_away_is_whole_or_gone(tmp_path: Path) -> None:
    folder = TenantFolder(tmp_path, "acme")
    folder.make()
    upload = Upload(folder, 100)
    upload.write(b"{}\n")
    upload.finish("a", "batch", 3_600, FileBounds())
    upload.close()
    upload.close()
    (file,) = FileStore(tmp_path, FileBounds()).list_all("acme")
    assert isinstance(file, StoredFile)
