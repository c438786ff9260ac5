"""Downloads a model onto this machine: resolves its revision, fetches it with the cluster's code, shows progress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from baton_engine.model.servable import servable_config
from baton_local.errors import LocalError, StartError
from baton_local.fetching.model_argument import HubName
from baton_local.fetching.model_cache import ModelCache
from baton_local.progress_bar import ProgressBar
from baton_model_fetch import hub, web
from baton_model_fetch.cache_volume import ModelFolder
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.errors import FetchError, SourceRefused
from baton_model_fetch.fetching import Watch, fetch
from baton_wire.models.errors import ModelError

_NAMES: Mapping[str, Mapping[str, str]] = {
    "hf": {"HF_TOKEN": "HF_TOKEN", "endpoint": "HF_ENDPOINT"},
    "s3": {
        **{name: name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION")},
        "endpoint": "AWS_ENDPOINT_URL",
    },
    "oci": {"endpoint": "OCI_ENDPOINT"},
}
"""Credential files of each scheme, as a cluster's Secret names them, with the environment variables for them here."""


class FetchFailedError(LocalError):
    """The download failed; the same command may succeed later, and resumes it."""


def pin_revision(name: HubName, cache: ModelCache, environment: Mapping[str, str], is_fresh: bool) -> str:
    """The source with its commit: the remembered one, unless there is none or `is_fresh`.

    Raises StartError, FetchFailedError.
    """
    text = f"{name.repository}@{name.revision}"
    known = None if is_fresh else cache.pin(text)
    if known is not None:
        _say(f"hf://{text} is commit {known}, as resolved before (--latest resolves it again)")
        return name.pinned(known)
    with _credentials("hf", environment) as credentials, _explain_errors(f"hf://{text}"):
        commit = asyncio.run(_commit(name, credentials))
    cache.remember(text, commit)
    _say(f"hf://{text} is commit {commit}")
    return name.pinned(commit)


def download_model(source: str, cache: ModelCache, environment: Mapping[str, str]) -> ModelFolder:
    """The folder with all verified files of a pinned source. Raises StartError, FetchFailedError."""
    model = cache.model(source)
    if model.is_whole():
        return model
    scheme = source.partition("://")[0]
    logging.getLogger("baton.fetch").setLevel(logging.ERROR)  # the progress bar replaces the log
    with _credentials(scheme, environment) as credentials, _explain_errors(source), contextlib.ExitStack() as stack:
        asyncio.run(fetch(source, model, credentials, _DownloadWatch(source, model, cache, stack)))
    _say(f"{source} is at {model.model}")
    return model


class _DownloadWatch(Watch):
    """Refuses an unservable model early, frees space in the cache, and shows a progress bar."""

    every_s = 0.2

    def __init__(self, source: str, model: ModelFolder, cache: ModelCache, stack: contextlib.ExitStack) -> None:
        self._source, self._model, self._cache, self._stack = source, model, cache, stack
        self._bar: ProgressBar | None = None

    def on_listed(self, total: int) -> None:
        for removed in self._cache.free_space(self._model, total):
            _say(f"removed {removed} from the cache to free space")
        name = self._source.partition("@")[0]
        self._bar = self._stack.enter_context(ProgressBar(f"fetching {name}", total, "B"))

    def on_described(self, config: Path) -> None:
        try:
            servable_config(config)
        except ModelError as error:
            raise StartError(f"{self._source} cannot be served: {error}") from error

    def on_progress(self, have: int, total: int, seconds: float) -> None:
        if self._bar is not None:
            self._bar.at(have)


async def _commit(name: HubName, credentials: Credentials) -> str:
    async with web.session(credentials.hosts) as session:
        return await hub.resolve_commit(session, name.repository, name.revision, credentials)


@contextlib.contextmanager
def _credentials(scheme: str, environment: Mapping[str, str]) -> Iterator[Credentials]:
    """The environment's credentials for a scheme, as the files that a cluster mounts, in a temporary folder."""
    files = {file: environment[name] for file, name in _NAMES[scheme].items() if environment.get(name)}
    docker = Path(environment.get("DOCKER_CONFIG", str(Path.home() / ".docker"))) / "config.json"
    if scheme == "oci" and docker.is_file() and '"auths"' in (text := docker.read_text(encoding="utf-8")):
        files[".dockerconfigjson"] = text
    if not files:
        yield Credentials(None)
        return
    with tempfile.TemporaryDirectory(prefix="baton-credentials-") as folder:  # its mode is 0700
        for file, text in {**files, "sources": f"{scheme}://"}.items():
            Path(folder, file).write_text(text, encoding="utf-8")
        yield Credentials(Path(folder))


@contextlib.contextmanager
def _explain_errors(source: str) -> Iterator[None]:
    """Raises the errors of the model fetch as StartError or FetchFailedError, which name the source."""
    try:
        yield
    except SourceRefused as error:
        raise StartError(f"{source}: {error}") from error
    except (FetchError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FetchFailedError(f"{source}: {reason}; the same command resumes the download") from error


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"baton: {text}", file=sys.stderr, flush=True)
