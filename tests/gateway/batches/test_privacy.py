"""Files and batches of other tenants are as unknown as those that never were."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from yarl import URL

from baton_testing.gateway.batch_client import begin, client_of, line, until_ended, upload
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway
from baton_testing.gateway.three_tenants import BAD, GOOD, key_file

NO_FILE, NO_BATCH = "file-" + "0" * 32, "batch_" + "0" * 32


@pytest.fixture
async def shared(pool: FakePool, tmp_path: Path, batch_folder: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(pool, f"--batch-folder={batch_folder}", f"--api-keys={key_file(tmp_path)}") as gateway:
        yield gateway


@pytest.fixture
async def good(shared: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(shared.url("/v1"), GOOD) as client:
        yield client


async def ask(
    gateway: RunningGateway, http: aiohttp.ClientSession, method: str, path: str, key: str = BAD, body: Any = None
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    url = URL(gateway.url(path), encoded=True)
    async with http.request(method, url, headers=headers, json=body) as got:
        return got.status, await got.json()


def batch_of(file_id: str) -> dict[str, Any]:
    return {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


async def test_what_belongs_to_another_tenant_is_answered_like_what_never_was(
    shared: RunningGateway, http: aiohttp.ClientSession, good: openai.AsyncOpenAI
) -> None:
    ended = await until_ended(good, (await begin(good, line("secret"))).id)
    assert ended.output_file_id is not None
    calls = [("GET", "/v1/files/{}"), ("DELETE", "/v1/files/{}"), ("GET", "/v1/files/{}/content")]
    for known, unknown in ((ended.input_file_id, NO_FILE), (ended.output_file_id, NO_FILE)):
        for method, path in calls:
            await assert_alike(shared, http, method, path, known, unknown)
    for method, path in (("GET", "/v1/batches/{}"), ("POST", "/v1/batches/{}/cancel")):
        await assert_alike(shared, http, method, path, ended.id, NO_BATCH)
    assert (await good.files.content(ended.output_file_id)).text, "nothing was deleted"


async def assert_alike(
    gateway: RunningGateway, http: aiohttp.ClientSession, method: str, path: str, known: str, unknown: str
) -> None:
    """The answer about another tenant's id is that about an unknown id."""
    answers = []
    for name in (known, unknown):
        status, body = await ask(gateway, http, method, path.format(name))
        body["error"].pop("request_id", None)
        answers.append((status, str(body).replace(name, "ID")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


async def test_another_tenants_file_is_no_input_and_the_field_is_named(
    shared: RunningGateway, http: aiohttp.ClientSession, good: openai.AsyncOpenAI
) -> None:
    file_id = await upload(good, line("secret"))
    for name in (file_id, NO_FILE, "../" + file_id, "x\0y", "x" * 10_000, ""):
        status, body = await ask(shared, http, "POST", "/v1/batches", body=batch_of(name))
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "file_not_found", "input_file_id")


async def test_lists_have_the_tenants_own_alone(
    shared: RunningGateway, http: aiohttp.ClientSession, good: openai.AsyncOpenAI
) -> None:
    batch = await begin(good, line("secret"))
    await until_ended(good, batch.id)
    for path in ("/v1/files", "/v1/batches", f"/v1/batches?limit=100&purpose={batch.input_file_id}"):
        status, body = await ask(shared, http, "GET", path)
        assert batch.id not in str(body)
        assert batch.input_file_id not in str(body)
        assert status in (200, 400)
    assert [listed.id async for listed in good.batches.list()] == [batch.id]


async def test_a_place_in_another_tenants_list_is_unknown(
    shared: RunningGateway, http: aiohttp.ClientSession, good: openai.AsyncOpenAI
) -> None:
    file_id = await upload(good, line("secret"))
    known, unknown = [await ask(shared, http, "GET", f"/v1/files?after={name}") for name in (file_id, NO_FILE)]
    for _, body in (known, unknown):
        body.get("error", {}).pop("request_id", None)
    assert str(known).replace(file_id, "ID") == str(unknown).replace(NO_FILE, "ID")


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "%2e%2e",
        "..%2f..%2factive",
        "%2fetc%2fpasswd",
        "file-" + "0" * 31 + "%0a",
        "file-" + "0" * 32 + ".json",
        "file-" + "0" * 32 + "%00",
        "FILE-" + "0" * 32,
        "%00",
        "%ff%fe",
        "%25252e",
        "x" * 5_000,
    ],
)
async def test_ids_that_are_no_ids_lead_nowhere(
    shared: RunningGateway, http: aiohttp.ClientSession, batch_folder: Path, name: str
) -> None:
    before = paths(batch_folder)
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
        assert (await ask(shared, http, "GET", path))[0] == 404
    assert (await ask(shared, http, "DELETE", f"/v1/files/{name}"))[0] == 404
    assert (await ask(shared, http, "POST", f"/v1/batches/{name}/cancel"))[0] == 404
    assert paths(batch_folder) == before


async def test_no_path_has_a_name_that_a_client_chose(
    shared: RunningGateway, good: openai.AsyncOpenAI, batch_folder: Path
) -> None:
    for name in ("../../marked", "/marked", "marked\0", "marked" * 100):
        file = await good.files.create(file=(name, b"x\n"), purpose="batch")
        assert (await good.files.retrieve(file.id)).filename
    assert not [path for path in paths(batch_folder) if "marked" in path]


def paths(folder: Path) -> set[str]:
    return {os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)}
