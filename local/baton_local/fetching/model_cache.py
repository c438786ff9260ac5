"""The user's cache of downloaded models: one folder per source, as on a cluster's volume, bounded in bytes.

The least recently used models are evicted when another one needs the space. A model that a running command uses is
never evicted: the command holds a shared file lock, which the kernel releases when the command ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_control.hashes import content_hash
from baton_local.errors import StartError
from baton_model_fetch.cache_volume import RECORD, ModelFolder
from baton_wire.whole_file import write_whole

DEFAULT_BYTES = 100 << 30
PINS = "pins.json"
_USED = ".used-"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/baton/models`, or `~/.cache/baton/models`."""
    chosen = environment.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    return base / "baton" / "models"


def open_cache(folder: Path | None, most_bytes: int | None, environment: Mapping[str, str]) -> ModelCache:
    """The cache that the command line names. None: the user's default folder, the default bound."""
    return ModelCache(folder or cache_folder(environment), most_bytes or DEFAULT_BYTES)


@dataclass(frozen=True, slots=True)
class ModelCache:
    """The cache in a folder, and the most bytes that it may take."""

    folder: Path
    most_bytes: int = DEFAULT_BYTES

    def model(self, source: str) -> ModelFolder:
        """The folder of a pinned source, downloaded or not."""
        return ModelFolder(self.folder, f"model-{content_hash(source)}")

    @contextlib.contextmanager
    def hold(self, model: ModelFolder) -> Iterator[None]:
        """Keep a model from being evicted while the context lasts, and note that it was used."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / f"{_USED}{model.key}").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._note_use(lock.fileno())
            yield

    def _note_use(self, descriptor: int) -> None:
        """Note a use that is later than every other one, even if the clock was set back in between."""
        latest = max((int(1e9 * self._used_at(model)) for model in self._models()), default=0)
        now = max(time.time_ns(), latest + 1_000)
        os.utime(descriptor, ns=(now, now))

    def free_space(self, wanted: ModelFolder, size: int) -> list[str]:
        """Evict models until `size` bytes fit into the bound; returns the evicted sources. Raises StartError."""
        if size > self.most_bytes:
            message = f"the model has {format_size(size)}, the cache may have {format_size(self.most_bytes)}"
            raise StartError(f"{message}: raise --cache-size")
        sizes = {model.key: _size(model) for model in self._models() if model.key != wanted.key}
        evicted = []
        for model in sorted(self._models(), key=self._used_at):
            if sum(sizes.values()) + size <= self.most_bytes:
                break
            source = _source(model)
            if model.key in sizes and self._remove(model):
                del sizes[model.key]
                evicted.append(source)
        if (held := sum(sizes.values())) + size > self.most_bytes:
            taken = f"{format_size(held)} of {format_size(self.most_bytes)}"
            message = f"the model has {format_size(size)}; models in use take {taken} in {self.folder}"
            raise StartError(f"{message}: raise --cache-size, or stop the commands that use them")
        return evicted

    def pin(self, name: str) -> str | None:
        """The commit that a name was resolved to before; None: it was not."""
        commit = self._pins().get(name)
        return commit if isinstance(commit, str) else None

    def remember(self, name: str, commit: str) -> None:
        """Remember the commit that a name was resolved to."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.folder / PINS, json.dumps({**self._pins(), name: commit}, sort_keys=True).encode())

    def _pins(self) -> dict[str, object]:
        try:
            content = json.loads((self.folder / PINS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _models(self) -> list[ModelFolder]:
        if not self.folder.is_dir():
            return []
        names = {path.name.removeprefix(".fetching-").removesuffix(".lock") for path in self.folder.iterdir()}
        return [ModelFolder(self.folder, name) for name in sorted(names) if name.startswith("model-")]

    def _used_at(self, model: ModelFolder) -> float:
        try:
            return (self.folder / f"{_USED}{model.key}").stat().st_mtime
        except OSError:
            return 0.0

    def _remove(self, model: ModelFolder) -> bool:
        """Remove a model and its partial download. False: a command uses or downloads it."""
        with contextlib.ExitStack() as stack:
            for name in (f"{_USED}{model.key}", f".fetching-{model.key}.lock"):
                lock = stack.enter_context((self.folder / name).open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            for folder in (model.model, model.draft):
                if folder.is_dir():
                    for path in (folder, *folder.rglob("*")):
                        if path.is_dir() and not path.is_symlink():
                            path.chmod(0o700)
                    shutil.rmtree(folder)
            for name in (f"{_USED}{model.key}", f".fetching-{model.key}.lock"):
                (self.folder / name).unlink()
            return True


def format_size(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"


def _size(model: ModelFolder) -> int:
    folders = (model.model, model.draft)
    return sum(path.lstat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def _source(model: ModelFolder) -> str:
    try:
        return str(json.loads((model.model / RECORD).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return model.key
