"""`baton up MODEL`: a name pinned once, fetched from a hub on loopback, resumed, bounded, refused early."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_control.spec.manifest import parse_manifest
from baton_control.spec.model_source import ModelSource, parse_source
from baton_control.worker_specs import Device
from baton_engine.model.servable import servable_model
from baton_local.errors import StartError
from baton_local.fetching.default_deployment import as_yaml, context_tokens
from baton_local.fetching.download import FetchFailedError, download_model, pin_revision
from baton_local.fetching.local_model import (
    LocalDeployment,
    SourceRequest,
    deployment_from_manifest,
    deployment_from_source,
)
from baton_local.fetching.model_argument import HubName, deployment_name, parse_model_argument, served_name
from baton_local.fetching.model_cache import ModelCache, cache_folder
from baton_local.progress_bar import ProgressBar
from baton_model_fetch import download
from baton_model_fetch.listing import is_wanted
from baton_testing.engine import tiny_llama
from baton_testing.fake_hub import REPOSITORY, FakeHub, FakeStore, model_files, served
from baton_testing.kube.manifests import deployment

FIRST, SECOND = "a" * 40, "b" * 40
NAME = HubName(REPOSITORY, "main")


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with served(FakeHub(model_files(tiny_llama.FOLDER))) as hub:
        yield hub


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


def up(text: str, hub: FakeHub, cache: ModelCache, **asked: object) -> LocalDeployment:
    environment = {"HF_ENDPOINT": hub.address, "HF_TOKEN": hub.token or ""}
    return deployment_from_source(SourceRequest(text, **asked), cache, environment, Device.CPU)  # type: ignore[arg-type]


def test_a_name_is_resolved_once_and_pinned_in_what_is_written_down(hub: FakeHub, cache: ModelCache) -> None:
    ready = up(f"hf://{REPOSITORY}", hub, cache)
    written = parse_manifest(as_yaml(ready.deployment))
    assert written == ready.deployment
    assert written.spec.model.source == f"hf://{REPOSITORY}@{FIRST}"
    assert (written.metadata.name, written.spec.model.served_name) == ("tiny-chat", REPOSITORY)
    assert servable_model(Path(ready.argument)).family == "llama"
    hub.branches["main"] = SECOND
    hub.seen.clear()
    assert up(f"hf://{REPOSITORY}", hub, cache).deployment == written
    assert hub.seen == [], "it is here, whatever the branch means by now"
    assert up(f"hf://{REPOSITORY}", hub, cache, is_fresh=True).deployment.spec.model.source.endswith(SECOND)


def test_a_token_reaches_the_hub_and_stands_nowhere_else(hub: FakeHub, cache: ModelCache) -> None:
    hub.token = "hf_secret"
    up(f"hf://{REPOSITORY}@main", hub, cache)
    files = [path for path in cache.folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hf_secret" in path.read_bytes()]
    with pytest.raises(StartError, match=r"HTTP 401: credentials are missing or not accepted"):
        pin_revision(HubName(REPOSITORY, "dev"), cache, {"HF_ENDPOINT": hub.address}, False)


def test_what_was_cut_off_goes_on_where_it_ended(
    hub: FakeHub, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.0)
    hub.cut_after = 100_000
    with pytest.raises(FetchFailedError, match="the same command resumes the download"):
        up(f"hf://{REPOSITORY}", hub, cache)
    hub.cut_after, before = None, hub.sent_bytes
    ready = up(f"hf://{REPOSITORY}", hub, cache)
    largest = max(map(len, hub.files.values()))
    assert hub.sent_bytes - before < largest - 6 * 100_000 + 200_000, "what came before was not sent again"
    assert (Path(ready.argument) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_model_that_cannot_be_served_is_refused_before_its_weights_come(hub: FakeHub, cache: ModelCache) -> None:
    config = json.loads(hub.files["config.json"]) | {"model_type": "falcon"}
    hub.files = {**hub.files, "config.json": json.dumps(config).encode()}
    with pytest.raises(StartError, match='cannot be served: model_type: "falcon" is not supported; allowed: '):
        up(f"hf://{REPOSITORY}", hub, cache)
    assert not any(path.endswith(".safetensors") for path in hub.seen)


def test_a_file_with_a_remote_source_is_fetched_as_on_a_cluster(hub: FakeHub, cache: ModelCache) -> None:
    written = deployment(model__source=f"hf://{REPOSITORY}@{FIRST}")
    ready = deployment_from_manifest(written, Path("file.yaml"), {}, cache, {"HF_ENDPOINT": hub.address})
    assert ready.deployment == written
    assert servable_model(Path(ready.argument)).family == "llama"


def test_a_folder_is_served_as_it_is(hub: FakeHub, cache: ModelCache) -> None:
    ready = up(str(tiny_llama.FOLDER), hub, cache, served_name="mine", max_context_tokens=64)
    model = ready.deployment.spec.model
    assert (model.source, model.served_name, model.max_context_tokens) == (f"file://{tiny_llama.FOLDER}", "mine", 64)
    assert ready.cached is None
    assert not cache.folder.exists()
    for text, message in [
        (str(cache.folder), "no such folder; a model of the hub is hf://ORG/NAME"),
        (str(tiny_llama.FOLDER.parent), "cannot be served: no config.json: a model is a folder with"),
    ]:
        with pytest.raises(StartError, match=message):
            up(text, hub, cache)
    with pytest.raises(StartError, match="cannot be served: max_context_tokens: 1000000 is not supported"):
        up(str(tiny_llama.FOLDER), hub, cache, max_context_tokens=1_000_000)


def test_the_cache_is_bounded_and_what_was_used_longest_ago_goes(hub: FakeHub, cache: ModelCache) -> None:
    environment = {"HF_ENDPOINT": hub.address}
    hub.branches = {letter: letter * 40 for letter in "abc"}
    size = sum(len(content) for name, content in hub.files.items() if is_wanted(name))
    small = ModelCache(cache.folder, int(size * 2.5))
    sources = {letter: f"hf://{REPOSITORY}@{letter * 40}" for letter in "abc"}
    for letter in "ab":
        model = download_model(sources[letter], small, environment)
        with small.hold(model):
            pass
    with small.hold(small.model(sources["a"])):
        download_model(sources["c"], small, environment)
        assert [small.model(sources[letter]).is_whole() for letter in "abc"] == [True, False, True]
        with pytest.raises(StartError, match=r"the cache may have .*: raise --cache-size"):
            download_model(sources["b"], ModelCache(cache.folder, size - 1), environment)
        with pytest.raises(StartError, match="models in use take"):
            download_model(sources["b"], ModelCache(cache.folder, size + 1), environment)
        assert small.model(sources["a"]).is_whole(), "it is in use"


def test_a_clock_that_was_set_back_makes_nothing_used_longest_ago(tmp_path: Path) -> None:
    small = ModelCache(tmp_path, most_bytes=250)
    a, b, c = (small.model(source) for source in "abc")
    for model in (a, b):
        model.model.mkdir()
        (model.model / "weights").write_bytes(bytes(100))
        with small.hold(model):
            pass
    before_s = time.time() + 3_600
    os.utime(tmp_path / f".used-{b.key}", (before_s, before_s))
    with small.hold(a):
        pass
    assert small.free_space(c, 100) == [b.key]


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("hf://org/name", HubName("org/name", "main")),
        ("hf://org/name@v1.0", HubName("org/name", "v1.0")),
        (f"hf://org/name@{FIRST}", parse_source(f"hf://org/name@{FIRST}")),
        ("s3://bucket/a/b", parse_source("s3://bucket/a/b")),
        ("models/x", Path("models/x")),
        ("file:///models/x", Path("/models/x")),
    ],
)
def test_what_a_text_means(text: str, means: Path | ModelSource | HubName) -> None:
    assert parse_model_argument(text) == means


@pytest.mark.parametrize(
    "text", ["hf://name", "hf://a/b/c", "hf://a/../b", "hf://a/b@", "oci://host/image:tag", "http://x", "pvc://a/b",
             "random://config.json", "hf://a/b@x y"]
)  # fmt: skip
def test_what_no_model_can_be_is_refused(text: str) -> None:
    with pytest.raises(StartError):
        parse_model_argument(text)


@pytest.mark.parametrize(
    ("served_as", "name"),
    [
        ("meta-llama/Llama-3.2-1B", "llama-3-2-1b"),
        ("org/7B_x", "m-7b-x"),
        ("Ü", "m"),
        ("x" * 80, "x" * 36),
        ("a" * 35 + "-b", "a" * 35),
    ],
)
def test_a_deployment_is_named_as_kubernetes_allows(served_as: str, name: str) -> None:
    assert deployment_name(served_as) == name


def test_models_are_named_after_what_they_are() -> None:
    assert served_name(parse_source("s3://bucket/models/llama")) == "llama"
    assert served_name(parse_source(f"hf://org/name@{FIRST}")) == "org/name"
    assert served_name(parse_source(f"oci://host:5000/a/image@sha256:{'0' * 64}")) == "image"


def test_the_context_is_what_the_model_and_the_memory_of_a_cpu_worker_allow() -> None:
    config = servable_model(tiny_llama.FOLDER)
    assert context_tokens(config, None, None) == config.max_context_tokens
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
    assert context_tokens(config, None, 8 * 1024 * per_token) == 1024 - 16
    assert context_tokens(config, None, 0) == 512
    assert context_tokens(config, 100, 0) == 100


def test_the_cache_is_the_users(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "baton" / "models"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "baton" / "models"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_last_line_of_a_bar_is_right_and_ends(stream: io.StringIO) -> None:
    with ProgressBar("fetching x", 400, "answers", stream) as bar:
        for done in (0, 100, 400):
            bar.at(done, "7 running")
    text = stream.getvalue()
    assert text.endswith("\n")
    last = text.rstrip("\n").split("\r")[-1]
    assert "100" in last
    assert "400" in last
    assert "7 running" in last


STORE = "s3://bucket/models/tiny"


def test_up_takes_a_model_from_a_bucket(cache: ModelCache) -> None:
    with served(FakeStore(model_files(tiny_llama.FOLDER))) as store:
        ready = deployment_from_source(SourceRequest(STORE), cache, {"AWS_ENDPOINT_URL": store.address}, Device.CPU)
    assert (ready.deployment.spec.model.source, ready.deployment.spec.model.served_name) == (STORE, "tiny")
    assert servable_model(Path(ready.argument)).family == "llama"


def test_up_takes_a_model_from_a_registry(cache: ModelCache) -> None:
    with served(FakeStore(model_files(tiny_llama.FOLDER))) as store:
        host = store.address.removeprefix("http://")
        source = f"oci://{host}/models/tiny@{store.digest}"
        ready = deployment_from_source(SourceRequest(source), cache, {"OCI_ENDPOINT": store.address}, Device.CPU)
    assert (ready.deployment.spec.model.source, ready.deployment.spec.model.served_name) == (source, "tiny")
    assert servable_model(Path(ready.argument)).family == "llama"
