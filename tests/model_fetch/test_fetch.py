"""Models from a hub, a bucket and a registry on loopback: whole, checked and read-only, or not there at all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import stat
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from baton_model_fetch import __main__ as program
from baton_model_fetch import download
from baton_model_fetch.cache_volume import RECORD, ModelFolder
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.errors import Damaged, FetchError, Interrupted, SourceRefused
from baton_model_fetch.fetching import fetch

COMMIT = "c" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 5000,
    "sub/tokenizer.json": b"{}",
}
OTHERS = {"pytorch_model.bin": b"no", ".gitattributes": b"no", "original/x.safetensors": b"no"}


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Source:
    """A server of all three kinds, with faults to order."""

    files: dict[str, bytes] = field(default_factory=lambda: {**FILES, **OTHERS})
    cut: int = 0
    """Number of bodies that end half-way."""
    flip: int = 0
    """Number of bodies with a wrong byte."""
    busy: int = 0
    """Number of requests that are answered 503."""
    token: str | None = None
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Path and Authorization of each request."""
    ranges: list[str] = field(default_factory=list)
    etags: dict[str, str] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    elsewhere: str | None = None
    """Bodies are redirected to this server."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, request.headers.get("Authorization", "")))
        if self.busy:
            self.busy -= 1
            return web.Response(status=503)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            if request.path == "/token" and request.headers.get("Authorization", "").startswith("Basic "):
                return web.json_response({"token": self.token})
            challenge = f'Bearer realm="http://{request.host}/token",service="s",scope="repository:a/b:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        path = request.path
        if path == f"/api/models/org/name/tree/{COMMIT}":
            return self._tree(request)
        if path.startswith(f"/org/name/resolve/{COMMIT}/"):
            if self.elsewhere is not None:
                raise web.HTTPFound(f"{self.elsewhere}{path}")
            return await self._body(request, self.files[path.split("/", 5)[5]])
        if path == "/bucket":
            return web.Response(text=self._listing(), content_type="application/xml")
        if path.startswith("/bucket/"):
            name = path.removeprefix("/bucket/models/tiny/")
            if request.headers.get("If-Match") not in (None, self._etag(name)):
                return web.Response(status=412)
            return await self._body(request, self.files[name])
        if path.startswith("/v2/a/b/manifests/"):
            manifest = self.manifests.get(path.rsplit("/", 1)[1])
            return web.Response(status=404) if manifest is None else web.Response(body=manifest)
        if path.startswith("/v2/a/b/blobs/"):
            return await self._body(request, self.blobs[path.rsplit("/", 1)[1]])
        return web.Response(status=404)

    def _tree(self, request: web.Request) -> web.Response:
        """Two pages; large files are in LFS."""
        entries: list[dict[str, object]] = [{"type": "directory", "path": "sub", "oid": "0" * 40, "size": 0}]
        for path, content in self.files.items():
            entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git_name(content)}
            if len(content) > 1000:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}
                entry["oid"] = "f" * 40
            entries.append(entry)
        if "cursor" in request.query:
            return web.json_response(entries[2:])
        link = f'<http://{request.host}{request.path}?cursor=1>; rel="next"'
        return web.json_response(entries[:2], headers={"Link": link})

    def _etag(self, name: str) -> str:
        return self.etags.get(name, f'"{hashlib.md5(self.files[name]).hexdigest()}"')

    def _listing(self) -> str:
        entries = "".join(
            f"<Contents><Key>models/tiny/{name}</Key><Size>{len(content)}</Size>"
            f"<ETag>{self._etag(name).replace('&', '&amp;')}</ETag></Contents>"
            for name, content in self.files.items()
        )
        return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{entries}</ListBucketResult>'

    async def _body(self, request: web.Request, content: bytes) -> web.StreamResponse:
        if self.flip and len(content) > 1000:
            self.flip -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = 0
        if "Range" in request.headers:
            self.ranges.append(request.headers["Range"])
            start = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        status = 206 if start else 200
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        reply = web.StreamResponse(status=status, headers=headers)
        reply.content_length = len(content) - start
        await reply.prepare(request)
        if self.cut and len(content) > 1000:
            self.cut -= 1
            await reply.write(content[start : start + (len(content) - start) // 2])
            assert request.transport is not None
            request.transport.close()
            return reply
        await reply.write(content[start:])
        return reply

    def push(self, layers: list[tuple[str, str | None, bytes]]) -> str:
        """Store an artefact of layers (media type, title, content); its digest."""
        entries = []
        for media, title, content in layers:
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self.blobs[digest] = content
            notes = {} if title is None else {"annotations": {"org.opencontainers.image.title": title}}
            entries.append({"mediaType": media, "digest": digest, "size": len(content), **notes})
        return self.push_manifest({"schemaVersion": 2, "layers": entries})

    def push_manifest(self, manifest: dict[str, object]) -> str:
        body = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[digest] = body
        return digest


@contextlib.asynccontextmanager
async def serving(source: Source) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", source.handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://{server.host}:{server.port}"
    finally:
        await server.close()


def credentials(folder: Path, **files: str) -> Credentials:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("dockerconfigjson", ".dockerconfigjson")).write_text(content)
    return Credentials(folder)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.0)


async def fetched(tmp_path: Path, source: Source, text: str, **secret: str) -> ModelFolder:
    cache = ModelFolder(tmp_path / "cache", "model")
    async with serving(source) as url:
        secret = {"endpoint": url, "sources": text.partition("@")[0], **secret}
        await fetch(text, cache, credentials(tmp_path / "secret", **secret))
    return cache


def content_of(cache: ModelFolder) -> dict[str, bytes]:
    contents = {
        str(path.relative_to(cache.model)): path.read_bytes() for path in cache.model.rglob("*") if path.is_file()
    }
    contents.pop(RECORD)
    return contents


HF, S3 = f"hf://org/name@{COMMIT}", "s3://bucket/models/tiny"


@pytest.mark.parametrize("source", [HF, S3])
async def test_the_files_that_baton_reads_are_there_whole_and_read_only(tmp_path: Path, source: str) -> None:
    cache = await fetched(tmp_path, Source(), source)
    assert content_of(cache) == FILES
    assert cache.is_whole()
    assert not cache.draft.exists()
    for path in (cache.model, *cache.model.rglob("*")):
        assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


@pytest.mark.parametrize("source", [HF, S3])
async def test_weights_that_are_there_twice_are_fetched_once(tmp_path: Path, source: str) -> None:
    """As Mistral's repositories have them; alone the second copy is a source's weights like any other."""
    twin = {"consolidated.safetensors": b"w" * 99, "consolidated.safetensors.index.json": b"{}"}
    both = await fetched(tmp_path / "both", Source(files={**FILES, **twin}), source)
    assert content_of(both) == FILES
    alone = {"config.json": FILES["config.json"], **twin}
    assert content_of(await fetched(tmp_path / "alone", Source(files=alone), source)) == alone


@pytest.mark.parametrize("source", [HF, S3])
async def test_a_body_that_ends_early_goes_on_where_it_stopped(tmp_path: Path, source: str) -> None:
    server = Source(cut=2, busy=1)
    with contextlib.suppress(Interrupted):  # the listing itself met the 503
        await fetched(tmp_path, server, source)
    cache = await fetched(tmp_path, server, source)
    assert content_of(cache) == FILES
    assert server.ranges
    assert all(requested != "bytes=0-" for requested in server.ranges)


@pytest.mark.parametrize("source", [HF, S3])
async def test_a_flipped_bit_is_found_and_fetched_again(tmp_path: Path, source: str) -> None:
    assert content_of(await fetched(tmp_path, Source(flip=1), source)) == FILES
    with pytest.raises(Damaged, match=r"model\.safetensors"):
        await fetched(tmp_path / "always", Source(flip=99), source)
    assert not (tmp_path / "always" / "cache" / "model").exists()


async def test_a_model_that_is_there_costs_no_request(tmp_path: Path) -> None:
    server = Source()
    await fetched(tmp_path, server, HF)
    server.seen.clear()
    cache = await fetched(tmp_path, server, HF)
    assert server.seen == []
    (cache.model / "sub").chmod(0o755)
    (cache.model / "sub" / "tokenizer.json").unlink()
    assert content_of(await fetched(tmp_path, server, HF)) == FILES


async def test_the_hubs_token_goes_to_the_hub_alone(tmp_path: Path) -> None:
    cdn = Source()
    async with serving(cdn) as elsewhere:
        hub = Source(token="secret", elsewhere=elsewhere)
        assert content_of(await fetched(tmp_path, hub, HF, HF_TOKEN="secret", hosts="127.0.0.1")) == FILES
    assert {authorization for _, authorization in cdn.seen} == {""}


async def test_no_access_is_refused_and_not_tried_again(tmp_path: Path) -> None:
    server = Source(token="secret")
    with pytest.raises(SourceRefused, match="credentials are missing or not accepted"):
        await fetched(tmp_path, server, HF, HF_TOKEN="wrong")
    assert len(server.seen) == 1


async def test_an_object_that_changes_while_it_is_fetched_is_never_mixed(tmp_path: Path) -> None:
    """An upload in parts has no hash: only the ETag shows that half of the file is an older version."""
    server = Source(cut=99, etags={"model.safetensors": '"aaa-2"'})
    with pytest.raises(Interrupted):
        await fetched(tmp_path, server, S3)
    server.files["model.safetensors"] = bytes(1_280_000)
    server.cut, server.etags = 0, {"model.safetensors": '"bbb-2"'}
    server.ranges.clear()
    cache = await fetched(tmp_path, server, S3)
    assert content_of(cache)["model.safetensors"] == bytes(1_280_000)
    assert server.ranges == []


@pytest.mark.parametrize(
    "path", ["../out.json", "/etc/x.json", "a//b.json", "a/../../b.json", "a\\..\\b.json", "a\x01.json"]
)
async def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(Damaged, match="not a path inside"):
        await fetched(tmp_path, Source(files={**FILES, path: b"{}"}), HF)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".fetching-model.lock"]


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        link = tarfile.TarInfo("models/link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


RAW = "application/vnd.cncf.model.weight.v1.raw"
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar"


@pytest.mark.parametrize("kind", ["files", "tar", "gzip", "index"])
async def test_an_artefact_is_files_or_archives(tmp_path: Path, kind: str) -> None:
    server = Source(token="secret")
    below = {f"models/{name}": content for name, content in {**FILES, **OTHERS}.items()}
    if kind in ("files", "index"):
        digest = server.push([(RAW, name, content) for name, content in {**FILES, **OTHERS}.items()])
    else:
        media = IMAGE_LAYER + ("+gzip" if kind == "gzip" else "")
        digest = server.push([(media, None, tar_of(below, "w:gz" if kind == "gzip" else "w"))])
    if kind == "index":
        platform = {"architecture": "amd64", "os": "linux"}
        digest = server.push_manifest({"manifests": [{"digest": digest, "platform": platform}]})
    config = {"auths": {"registry.example.com": {"auth": base64.b64encode(b"me:pass").decode()}}}
    source = f"oci://registry.example.com/a/b@{digest}"
    cache = await fetched(tmp_path, server, source, dockerconfigjson=json.dumps(config))
    assert content_of(cache) == FILES
    assert cache.is_whole()


async def test_another_manifest_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    server = Source()
    digest = server.push([(RAW, name, content) for name, content in FILES.items()])
    server.manifests[digest] += b" "
    with pytest.raises(Damaged, match="the manifest that came is not"):
        await fetched(tmp_path, server, f"oci://registry.example.com/a/b@{digest}")


async def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="no files that Baton reads"):
        await fetched(tmp_path, Source(files=OTHERS), HF)
    with pytest.raises(Damaged, match=r"no config\.json"):
        await fetched(tmp_path, Source(files={"model.safetensors": b"x"}), HF)


async def test_two_do_not_fetch_the_same_model_at_once(tmp_path: Path) -> None:
    cache = ModelFolder(tmp_path, "model")
    with cache.alone(), pytest.raises(Interrupted, match="another process"):
        await fetch(HF, cache, Credentials(None))


async def test_a_try_that_ended_before_its_rename_is_taken_up(tmp_path: Path) -> None:
    server = Source(cut=99)
    with pytest.raises(FetchError):
        await fetched(tmp_path, server, HF)
    cache = ModelFolder(tmp_path / "cache", "model")
    for path in cache.draft.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    server.cut = 0
    assert content_of(await fetched(tmp_path, server, HF)) == FILES


async def test_the_program_says_by_its_status_whether_another_try_helps(tmp_path: Path) -> None:
    server = Source()
    async with serving(server) as url:
        credentials(tmp_path / "secret", endpoint=url, sources="hf://org")
        common = ["--key=model", f"--cache={tmp_path / 'cache'}", f"--credentials={tmp_path / 'secret'}"]
        missing = await asyncio.to_thread(program.main, [f"--source=hf://org/other@{COMMIT}", *common])
        server.busy = 1
        busy = await asyncio.to_thread(program.main, [f"--source={HF}", *common])
        note = tmp_path / "progress"
        done = await asyncio.to_thread(program.main, [f"--source={HF}", *common, f"--progress={note}"])
        common[1] = f"--cache={tmp_path / 'another'}"
        nowhere = tmp_path / "missing" / "progress"
        unnoted = await asyncio.to_thread(program.main, [f"--source={HF}", *common, f"--progress={nowhere}"])
    assert (missing, busy, done) == (program.REFUSED, 1, 0)
    assert unnoted == 0, "how far it is cannot be noted, and the model comes all the same"
    have, total = note.read_text(encoding="ascii").split()
    assert have == total == str(sum(map(len, FILES.values())))
