"""A folder of kernels that were compiled ahead: Triton's own files, and `about.json`, which says what they are for.

Triton finds a kernel by what it was made of: its source, its types, its options, the GPU, and Triton itself. So what
does not fit is never used. Triton writes down whole paths, though, and wants to write where it reads. A folder may be
moved and may be read-only: here files are found by their names in it, and whatever is compiled goes to Triton's own
cache (`TRITON_CACHE_DIR`).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ABOUT: Final = "about.json"
_GROUP: Final = "__grp__"
"""Before the name of the file that Triton writes last, when a kernel is whole."""


@dataclass(frozen=True, slots=True)
class KernelFolder:
    """A folder of compiled kernels, as its description names it."""

    path: Path
    triton: str
    """A version; the exact build is in `key`."""
    key: str
    """Digest of Triton and of the sources that launch kernels."""
    gpu: str
    """As its driver calls it."""
    covered: Mapping[str, str]
    """Descriptions of the workers whose kernels are all in the folder, by their digests of `launches`."""

    def unfit(self, gpu: str) -> str | None:
        """Why this process, on this GPU, cannot use it whole; None when it can."""
        if self.triton != (here := triton_version()):
            return f"they are of Triton {self.triton}, here is {here}"
        if self.key != own_key():
            return "they are of another build of Triton or of other sources"
        if self.gpu != gpu:
            return f"they are for {self.gpu}, here is {gpu}"
        return None


def read_folder(path: Path) -> KernelFolder:
    """Raises ValueError for a folder without a whole `about.json`, naming it."""
    try:
        about = json.loads((path / ABOUT).read_bytes())
        covered = {str(digest): str(words) for digest, words in about["covered"].items()}
        return KernelFolder(path, str(about["triton"]), str(about["key"]), str(about["gpu"]), covered)
    except OSError as error:
        raise ValueError(f"{path / ABOUT}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / ABOUT}: is not what `baton compile` writes: {error!r}") from error


def write_about(path: Path, gpu: str, covered: Mapping[str, str]) -> None:
    """Say that all kernels of these workers are in the folder, beside what it covers already if that fits.

    Raises OSError.
    """
    try:
        before = read_folder(path)
    except ValueError:
        before = None
    known = {} if before is None or before.unfit(gpu) else before.covered
    about = {"triton": triton_version(), "key": own_key(), "gpu": gpu, "covered": {**known, **covered}}
    draft = path / f"{ABOUT}.{os.getpid()}"
    try:
        draft.write_text(json.dumps(about, indent=2) + "\n")
        draft.replace(path / ABOUT)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def triton_version() -> str:
    import triton

    return str(triton.__version__)


@cache
def own_key() -> str:
    """Digest Triton's build and all sources that launch kernels: equal keys launch equal kernels."""
    from triton.runtime.cache import triton_key

    import baton_kernels

    digest = hashlib.sha256(triton_key().encode())
    root = Path(baton_kernels.__file__).parent
    for path in sorted(root.rglob("*.py")) + sorted(root.rglob("*.json")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def fill_folder(path: Path, here: CompiledHere) -> Iterator[None]:
    """Write kernels compiled within to the folder, in the files that a worker needs, and report them to `here`."""
    from triton import knobs

    path.mkdir(parents=True, exist_ok=True)
    cache, compilation = knobs.cache, knobs.compilation
    before = cache.dir, compilation.store_binary_only, compilation.listener
    cache.dir, compilation.store_binary_only, compilation.listener = str(path), True, here
    try:
        yield
    finally:
        cache.dir, compilation.store_binary_only, compilation.listener = before


def own_cache() -> Path:
    """Triton's own, where this process compiles to."""
    from triton import knobs

    return Path(knobs.cache.dir)


def use_folder(path: Path) -> None:
    """From now on Triton looks into the folder before its own cache. For the whole process."""
    from triton import knobs

    knobs.cache.manager_class = _found_in(path)


def _found_in(folder: Path) -> type:
    """Triton's files of one kernel, or of one module of C, which it names by `key`."""
    from triton.runtime.cache import CacheManager, FileCacheManager

    class FolderFirst(CacheManager):  # type: ignore[misc]  # untyped
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self._ahead = None if override or dump else folder / key
            self._kind = (key, override, dump)
            self._own: Any = None

        def get_file(self, filename: str) -> str | None:
            if self._ahead is not None and (file := self._ahead / filename).is_file():
                return str(file)
            own: str | None = self._there().get_file(filename)
            return own

        def get_group(self, filename: str) -> dict[str, str] | None:
            if self._ahead is not None and (self._ahead / f"{_GROUP}{filename}").is_file():
                return {file.name: str(file) for file in self._ahead.iterdir() if not file.name.startswith(_GROUP)}
            own: dict[str, str] | None = self._there().get_group(filename)
            return own

        def put(self, data: object, filename: str, binary: bool = True) -> str:
            return str(self._there().put(data, filename, binary))

        def put_group(self, filename: str, group: dict[str, str]) -> str:
            return str(self._there().put_group(filename, group))

        def _there(self) -> Any:
            """Made when it is needed: it makes a folder."""
            if self._own is None:
                self._own = FileCacheManager(*self._kind)
            return self._own

    return FolderFirst


class CompiledHere:
    """The kernels that this process compiled itself, and how many it found compiled. Triton reports from any thread."""

    def __init__(self, observe: Callable[[str, float], None] = lambda name, seconds: None) -> None:
        """`observe` is called with each compiled kernel and the seconds that it took."""
        self._lock = threading.Lock()
        self._observe = observe
        self.names: list[str] = []
        self.found = 0

    def __call__(self, *, src: Any, times: Any, cache_hit: bool, **rest: object) -> None:
        with self._lock:
            if cache_hit:
                self.found += 1
                return
            self.names.append(str(src.name))
        self._observe(str(src.name), times.total / 1e6)

    def watch(self) -> None:
        """For the whole process, from now on."""
        from triton import knobs

        knobs.compilation.listener = self
