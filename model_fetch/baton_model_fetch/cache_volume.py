"""The cache volume: a folder per source, which is complete and read-only, or absent.

`FOLDER/.fetching-KEY/` holds an unfinished fetch; it becomes `FOLDER/KEY/` by one rename after everything was checked.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from baton_model_fetch import folder_lock
from baton_model_fetch.errors import Damaged, SourceRefused, VolumeRefused
from baton_model_fetch.file_system import VolumeModes, move_folder, sync, sync_folder
from baton_model_fetch.listing import RemoteFile, is_wanted, safe_path

RECORD = "baton-files.json"
"""Lists what a folder has to contain; written last."""
CONFIG = "config.json"
FILE_MODE, FOLDER_MODE = 0o444, 0o555
MOST_UNPACKED, SLACK_BYTES = 8, 256 << 20
"""An archive may unpack to this many times its own size, and a little more: text shrinks, weights hardly do."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    folder: Path
    key: str
    modes: VolumeModes = field(default_factory=VolumeModes, compare=False, repr=False)

    @property
    def model(self) -> Path:
        """Where workers find the model."""
        return self.folder / self.key

    @property
    def draft(self) -> Path:
        return self.folder / f".fetching-{self.key}"

    def is_whole(self) -> bool:
        """True if the model is there with every file that its record lists, each in its size."""
        try:
            record = json.loads((self.model / RECORD).read_text(encoding="utf-8"))
            return all((self.model / path).stat().st_size == size for path, size in record["files"].items())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return False

    @contextlib.contextmanager
    def alone(self) -> Iterator[folder_lock.HeldLock]:
        """Hold the model's lock: a Pod that was given up may still run. Raises Busy while another has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock.hold(self.folder / f".fetching-{self.key}.lock") as lock:
            yield lock

    def prepare(self, source: str, files: Iterable[RemoteFile]) -> dict[RemoteFile, Path]:
        """The path of each file. Keeps files that an earlier try fetched, where a hash can prove that they are the
        same. Raises VolumeRefused where there is no room for the files, or where two names are one."""
        self.draft.mkdir(exist_ok=True)
        self.modes.make_writable(self.draft)  # a try may have ended just before its rename
        files = tuple(files)
        listing = self.draft / "listing"
        if not listing.is_file() or listing.read_text(encoding="ascii") != _identity(files):
            shutil.rmtree(self.draft)
            self.draft.mkdir()
            listing.write_text(_identity(files), encoding="ascii")
        self._check_names(files)
        wanted = {file: self.draft / ("archives" if file.is_archive else "files") / file.path for file in files}
        keep = {path for file, path in wanted.items() if file.hash_kind is not None} | {listing}
        for path in self.draft.rglob("*"):
            if path.is_symlink() or (path.is_file() and path not in keep):
                path.unlink()
        for path in wanted.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        self._check_space(sum(file.size for file in wanted), source)
        return wanted

    def _check_names(self, files: tuple[RemoteFile, ...]) -> None:
        """Raises VolumeRefused where names that differ in case alone are one file."""
        if not (self.draft / "LISTING").exists():
            return
        by_name: dict[str, str] = {}
        for file in files:
            twin = by_name.setdefault(file.path.casefold(), file.path)
            if twin != file.path:
                raise VolumeRefused(f"the volume does not tell {file.path!r} from {twin!r}: it ignores case")

    def _check_space(self, size: int, source: str) -> None:
        have = sum(path.stat().st_size for path in self.draft.rglob("*") if path.is_file())
        usage = shutil.disk_usage(self.folder)
        if usage.total > 0 and size - have > usage.free:  # some network file systems report no size at all
            missing = (size - have - usage.free) / (1 << 30)
            raise VolumeRefused(
                f"{source} needs {missing:.1f} GiB more than the cache has: raise spec.model.cache.size"
            )

    def publish(self, source: str, files: Iterable[RemoteFile]) -> int:
        """Make the fetched files the model; returns their bytes. Raises Damaged without a config.json, OSError."""
        content = self.draft / "files"
        content.mkdir(exist_ok=True)
        for file in files:
            if file.is_archive:
                extract(self.draft / "archives" / file.path, content)
        shutil.rmtree(self.draft / "archives", ignore_errors=True)
        root = _root(content)
        sizes = {str(path.relative_to(root)): path.stat().st_size for path in _files(root)}
        with (root / RECORD).open("w", encoding="utf-8") as record:
            json.dump({"source": source, "files": sizes}, record, sort_keys=True)
            record.flush()
            sync(record.fileno())
        if self.model.exists():  # incomplete, or nothing would be fetched
            self.modes.make_writable(self.model)
            shutil.rmtree(self.model)
        move_folder(root, self.model, last=RECORD)
        for path in sorted(self.model.rglob("*"), reverse=True):
            self.modes.set(path, FOLDER_MODE if path.is_dir() else FILE_MODE)
        self.modes.set(self.model, FOLDER_MODE)
        sync_folder(self.folder)
        shutil.rmtree(self.draft, ignore_errors=True)
        return sum(sizes.values())


def extract(archive: Path, into: Path) -> None:
    """Write the files of a tar that Baton reads, without links, devices, owners and modes. Raises Damaged, and
    SourceRefused when more comes out than weights and vocabularies ever shrink by."""
    try:
        most = SLACK_BYTES + MOST_UNPACKED * archive.stat().st_size
        with (
            _unpacked(archive) as plain,
            tarfile.open(fileobj=cast(IO[bytes], _Bounded(plain, most)), mode="r|") as members,
        ):
            for member in members:
                name = member.name.removeprefix("./")
                if not member.isreg() or not is_wanted(name):
                    continue
                path = into / safe_path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                content = members.extractfile(member)
                assert content is not None
                with content, path.open("wb") as out:
                    _copy(content, out)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Damaged(f"{archive.name}: {error}") from error


class _Bounded:
    """Reads from `source` until more than `most` bytes came; unpacking, headers included, stops there."""

    def __init__(self, source: IO[bytes], most: int) -> None:
        self._source, self._most, self._left = source, most, most

    def read(self, size: int = -1, /) -> bytes:
        """Raises SourceRefused beyond the bound."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SourceRefused(f"an archive unpacks to over {self._most} bytes, far more than its own size")
        return data


def _unpacked(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(archive)) if is_gzip else archive.open("rb")


def _copy(content: IO[bytes], out: IO[bytes]) -> None:
    shutil.copyfileobj(content, out, 4 << 20)
    out.flush()
    sync(out.fileno())


def _root(content: Path) -> Path:
    """The folder with the model's configuration: archives often have it below a folder or two. Raises Damaged."""
    configs = sorted(content.rglob(CONFIG), key=lambda path: (len(path.parts), path))
    if not configs:
        raise Damaged(f"the source has no {CONFIG}")
    if len(configs) > 1 and len(configs[0].parts) == len(configs[1].parts):
        raise Damaged(f"the source has several {CONFIG}: {configs[0]} and {configs[1]}")
    return configs[0].parent


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file())


def _identity(files: tuple[RemoteFile, ...]) -> str:
    """Equal for listings of the same content: a bucket's objects may change between two tries."""
    known = [(file.path, file.size, file.digest, file.headers.get("If-Match", "")) for file in files]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()
