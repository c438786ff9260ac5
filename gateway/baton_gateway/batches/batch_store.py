"""The batches of tenants on disk: creation, lookup, the wish to cancel, and what keeps one from going on. All block."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from baton_gateway.batches.batch_record import KEPT_S, WINDOW_S, BatchProblem, BatchRecord, BatchWish, shown_status
from baton_gateway.batches.file_store import FileStore
from baton_gateway.batches.folder import (
    BATCH_ID,
    active_folder,
    new_batch_id,
    new_file_id,
    try_lock,
    write_whole,
)
from baton_gateway.batches.refusals import batch_has_ended, batch_not_found, file_in_use, too_many_batches
from baton_gateway.errors import RefusedError

_log = logging.getLogger("baton.gateway.batches")
MAX_ACTIVE: Final = 16
"""Batches of one tenant that have not ended."""
MAX_KEPT: Final = 1_000
"""Batches of one tenant; the oldest that ended make room."""
ORPHAN_S: Final = 60.0
"""An entry of a batch without a record is removed once it is this old: its creation was interrupted."""
NOTICE_BYTES: Final = 1_024
_RECORD, _LOCK, _CANCEL, _NOTICE = "record.json", "lock", "cancel", "notice"


@dataclass(frozen=True, slots=True)
class ActiveBatch:
    """A batch that has not ended, by its tenant's key in the folder."""

    tenant_key: str
    id: str

    @property
    def entry(self) -> str:
        return f"{self.tenant_key}.{self.id}"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A new batch as a client asks for it."""

    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None = None
    output_kept_s: int = KEPT_S
    """How long its files of answers are kept."""


class BatchFolder:
    """The folder of one batch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> BatchRecord | None:
        """Return the record; None: there is none. Raises OSError."""
        try:
            return msgspec.json.decode((self.path / _RECORD).read_bytes(), type=BatchRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def has_record(self) -> bool:
        """Return whether there is a record, perhaps a damaged one. Raises OSError."""
        return (self.path / _RECORD).exists()

    def write(self, record: BatchRecord) -> None:
        """Replace the record. Raises OSError; the former one stays then."""
        write_whole(self.path / _RECORD, msgspec.json.encode(record))

    def wish(self) -> BatchWish:
        """Return what stands next to the record. Raises OSError."""
        try:
            cancelled_at = int((self.path / _CANCEL).stat().st_mtime)
        except FileNotFoundError:
            cancelled_at = None
        return BatchWish(cancelled_at, self._pause())

    def cancel(self) -> None:
        """Note that a client wants to cancel it. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            (self.path / _CANCEL).touch(exist_ok=False)

    def prepare_notice(self) -> None:
        """Reserve the room of a notice, so that it can be written on a full disk. Raises OSError."""
        (self.path / _NOTICE).write_bytes(b" " * NOTICE_BYTES)
        (self.path / _LOCK).touch()

    def note(self, pause: BatchProblem | None) -> None:
        """Say why it does not go on, or that it does: in place, because the disk may be full. A failure is left, since
        a notice changes nothing."""
        content = b"" if pause is None else msgspec.json.encode(pause)
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path / _NOTICE, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, content[:NOTICE_BYTES].ljust(NOTICE_BYTES), 0)
            finally:
                os.close(descriptor)

    def claim(self) -> int | None:
        """Become the owner until the returned descriptor is closed; None: another process is. Raises OSError."""
        return try_lock(self.path / _LOCK)

    def _pause(self) -> BatchProblem | None:
        try:
            content = (self.path / _NOTICE).read_bytes().strip()
            return msgspec.json.decode(content, type=BatchProblem) if content else None
        except (FileNotFoundError, msgspec.DecodeError):
            return None


class BatchStore:
    """The batches of all tenants in one folder."""

    def __init__(self, root: Path, files: FileStore) -> None:
        self.root = root
        self.files = files

    def create(self, tenant: str, plan: BatchPlan) -> BatchRecord:
        """Create a batch. Raises RefusedError, OSError."""
        folder = self.files.folder(tenant)
        now = int(time.time())
        with folder.lock():
            file = self.files.find(tenant, plan.input_file_id, "input_file_id")
            if sum(active.tenant_key == folder.key for active in self.active()) >= MAX_ACTIVE:
                raise RefusedError(too_many_batches(MAX_ACTIVE))
            record = BatchRecord(
                new_batch_id(),
                tenant,
                plan.endpoint,
                file.id,
                new_file_id(),
                new_file_id(),
                now,
                now + WINDOW_S,
                plan.metadata,
                output_kept_s=plan.output_kept_s,
            )
            batch = self.folder(ActiveBatch(folder.key, record.id))
            entry = active_folder(self.root) / ActiveBatch(folder.key, record.id).entry
            try:
                entry.touch()
                batch.path.mkdir(mode=0o750)
                batch.prepare_notice()
                batch.write(record)
            except OSError:
                shutil.rmtree(batch.path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    entry.unlink(missing_ok=True)
                raise
        return record

    def find(self, tenant: str, batch_id: str) -> tuple[BatchRecord, BatchWish]:
        """Return a batch of the tenant. Raises RefusedError (404), OSError."""
        if BATCH_ID.fullmatch(batch_id):
            batch = BatchFolder(self.files.folder(tenant).batches / batch_id)
            if (record := batch.read()) is not None:
                return record, batch.wish()
        raise RefusedError(batch_not_found(batch_id))

    def list_all(self, tenant: str) -> list[tuple[BatchRecord, BatchWish]]:
        """Return the tenant's batches, the newest first. Raises OSError."""
        known = []
        for batch in _batches(self.files.folder(tenant).batches):
            if (record := batch.read()) is not None:
                known.append((record, batch.wish()))
        return sorted(known, key=lambda pair: (-pair[0].created_at, pair[0].id))

    def cancel(self, tenant: str, batch_id: str) -> tuple[BatchRecord, BatchWish]:
        """Ask the owner to cancel a batch. Raises RefusedError, OSError."""
        record, wish = self.find(tenant, batch_id)
        if record.status.has_ended:
            raise RefusedError(batch_has_ended(shown_status(record, wish).value))
        BatchFolder(self.files.folder(tenant).batches / batch_id).cancel()
        return self.find(tenant, batch_id)

    def delete_file(self, tenant: str, file_id: str) -> None:
        """Delete a file that no batch is reading. Raises RefusedError, OSError."""
        file, folder = self.files.find(tenant, file_id), self.files.folder(tenant)
        with folder.lock():
            for active in self.active():
                if active.tenant_key != folder.key:
                    continue
                record = self.folder(active).read()
                if record is not None and not record.status.has_ended and record.input_file_id == file.id:
                    raise RefusedError(file_in_use(record.id))
        self.files.delete(tenant, file_id)

    def active(self) -> list[ActiveBatch]:
        """Return the batches that have not ended, the oldest first as far as names say. Raises OSError."""
        known = []
        with os.scandir(active_folder(self.root)) as entries:
            for entry in entries:
                key, _, batch_id = entry.name.partition(".")
                if key and BATCH_ID.fullmatch(batch_id):
                    known.append(ActiveBatch(key, batch_id))
        return known

    def folder(self, active: ActiveBatch) -> BatchFolder:
        return BatchFolder(self.root / "tenants" / active.tenant_key / "batches" / active.id)

    def forget(self, active: ActiveBatch) -> None:
        """The batch has ended. Raises OSError."""
        (active_folder(self.root) / active.entry).unlink(missing_ok=True)

    def forget_orphan(self, active: ActiveBatch, now_s: float) -> None:
        """Remove what is left of a batch whose creation was interrupted. A record that cannot be read keeps its
        folder. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            if abs(now_s - (active_folder(self.root) / active.entry).stat().st_mtime) <= ORPHAN_S:
                return
            folder = self.folder(active)
            if folder.has_record():
                _log.error("the record of a batch cannot be read, so the batch does not go on: %s", folder.path)
            else:
                shutil.rmtree(folder.path, ignore_errors=True)
            self.forget(active)

    def sweep(self, now_s: float) -> None:
        """Delete what is expired, of every tenant: files, dead uploads, batches that ended long ago. Raises OSError."""
        records = (self.folder(active).read() for active in self.active())
        in_use = (
            (record.input_file_id, record.output_file_id, record.error_file_id)
            for record in records
            if record is not None
        )
        self.files.sweep(now_s, frozenset(chain.from_iterable(in_use)))
        for tenant in (self.root / "tenants").iterdir():
            ended = [
                (record.ended_at, batch.path)
                for batch in _batches(tenant / "batches")
                if (record := batch.read()) is not None and record.ended_at is not None
            ]
            ended.sort()
            for place, (ended_at, path) in enumerate(ended):
                if ended_at + KEPT_S <= now_s or place < len(ended) - MAX_KEPT:
                    shutil.rmtree(path, ignore_errors=True)


def _batches(folder: Path) -> Iterator[BatchFolder]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if BATCH_ID.fullmatch(entry.name)]
    except FileNotFoundError:
        return
    for name in names:
        yield BatchFolder(folder / name)


def page_of(items: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """One page of a list in OpenAI's form. An unknown `after` gives an empty page."""
    begin = 0
    if after is not None:
        begin = next((place + 1 for place, item in enumerate(items) if item["id"] == after), len(items))
    page = items[begin : begin + limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": begin + limit < len(items)}
