"""The bounds of a tenant's files, their expiry, and disks that are full, at every call that writes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton_gateway.batches import batch_desk
from baton_gateway.batches.batch_desk import BatchDesk
from baton_gateway.batches.batch_record import KEPT_S, BatchStatus
from baton_gateway.batches.batch_store import BatchPlan, BatchStore
from baton_gateway.batches.file_store import FileBounds, FileStore, StoredFile
from baton_gateway.batches.folder import check_batch_folder
from baton_gateway.errors import RefusedError
from baton_testing.gateway.gateway_process import until

CHAT = "/v1/chat/completions"
BOUNDS = FileBounds(file_bytes=100, all_bytes=250, number=3)
HOUR_S = 3_600


class NoMetrics:
    def batch_ended(self, status: BatchStatus) -> None: ...

    def batch_lines(self, result: str, lines: int = 1) -> None: ...

    def sample_batches(self, running: int, paused: int) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    check_batch_folder(tmp_path)
    return BatchStore(tmp_path, FileStore(tmp_path, BOUNDS))


def upload(store: BatchStore, size: int = 10, tenant: str = "acme", kept_s: int = KEPT_S) -> StoredFile:
    opened = store.files.open_upload(tenant)
    try:
        opened.write(b"x" * size)
        return opened.finish("in.jsonl", "batch", kept_s, store.files.bounds)
    finally:
        opened.close()


def refusal(call: Callable[[], object]) -> tuple[int, str | None]:
    with pytest.raises(RefusedError) as caught:
        call()
    return caught.value.problem.status, caught.value.problem.code


def paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_tenant_has_a_bounded_number_of_files_and_others_have_theirs(store: BatchStore) -> None:
    files = [upload(store) for _ in range(BOUNDS.number)]
    assert refusal(lambda: upload(store)) == (400, "file_quota_exceeded")
    assert upload(store, tenant="other").size == 10
    store.delete_file("acme", files[0].id)
    assert upload(store).size == 10


def test_a_tenants_files_have_a_bound_together(store: BatchStore) -> None:
    for _ in range(2):
        upload(store, 100)
    assert store.files.open_upload("acme").most_bytes == 50, "an upload knows how much room is left"
    assert refusal(lambda: upload(store, 51)) == (400, "file_quota_exceeded")
    assert upload(store, 50).size == 50
    assert upload(store, 100, "other").size == 100


def test_answers_of_batches_so_far_leave_less_room_for_uploads(store: BatchStore) -> None:
    store.create("acme", BatchPlan(CHAT, upload(store).id))
    [active] = store.active()
    for name, size in (("output.jsonl", 150), ("errors.jsonl", 50)):
        (store.folder(active).path / name).write_bytes(b"x" * size)
    assert store.files.open_upload("acme").most_bytes == 40
    assert refusal(lambda: upload(store, 41)) == (400, "file_quota_exceeded")
    assert upload(store, 40).size == 40
    assert upload(store, 100, "other").size == 100


def test_uploads_that_run_at_the_same_time_exceed_no_bound_together(store: BatchStore) -> None:
    opened = [store.files.open_upload("acme") for _ in range(4)]
    for one in opened:
        one.write(b"x" * 80)
    for one in opened[:3]:
        one.finish("in.jsonl", "batch", KEPT_S, BOUNDS)
    assert refusal(lambda: opened[3].finish("in.jsonl", "batch", KEPT_S, BOUNDS)) == (400, "file_quota_exceeded")
    for one in opened:
        one.close()
    assert len(store.files.list_all("acme")) == 3
    assert not list(store.files.folder("acme").uploads.iterdir())


def test_an_expired_file_is_unknown_everywhere_before_it_is_deleted(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = upload(store, kept_s=HOUR_S)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + HOUR_S + 1)
    assert store.files.list_all("acme") == []
    for call in (
        lambda: store.files.find("acme", file.id),
        lambda: store.files.open_content("acme", file.id),
        lambda: store.delete_file("acme", file.id),
        lambda: store.create("acme", BatchPlan(CHAT, file.id)),
    ):
        assert refusal(call) == (404, "file_not_found")
    store.sweep(time.time())
    assert not list(store.files.folder("acme").files.iterdir())


def test_the_record_of_a_batch_goes_thirty_days_after_its_end_and_no_sooner(store: BatchStore) -> None:
    record = store.create("acme", BatchPlan(CHAT, upload(store).id))
    [active] = store.active()
    ended = int(time.time())
    store.folder(active).write(msgspec.structs.replace(record, status=BatchStatus.COMPLETED, ended_at=ended))
    store.forget(active)
    store.sweep(ended + KEPT_S - 1)
    assert store.find("acme", record.id)[0].ended_at == ended
    store.sweep(ended + KEPT_S)
    assert refusal(lambda: store.find("acme", record.id)) == (404, "batch_not_found")


@pytest.mark.parametrize("step_s", [HOUR_S + 60, -HOUR_S - 60])
def test_a_clock_that_steps_by_an_hour_ends_no_upload(store: BatchStore, step_s: int) -> None:
    opened = store.files.open_upload("acme")
    opened.write(b"x")
    store.sweep(time.time() + step_s)
    file = opened.finish("in.jsonl", "batch", KEPT_S, BOUNDS)
    opened.close()
    assert store.files.find("acme", file.id).size == 1


def full(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name"), [(os, "write"), (os, "fsync"), (Path, "rename"), (Path, "open"), (Path, "replace")]
)
def test_an_upload_on_a_full_disk_leaves_nothing_that_is_a_file(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, full)
        with pytest.raises(OSError, match="No space"):
            upload(store)
    assert store.files.list_all("acme") == []
    assert not list(store.files.folder("acme").uploads.iterdir())
    assert not list(store.files.folder("acme").files.iterdir())
    assert upload(store).size == 10


@pytest.mark.parametrize("name", ["touch", "mkdir", "write_bytes", "open", "replace"])
def test_a_batch_that_is_created_on_a_full_disk_leaves_nothing(
    store: BatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = upload(store)
    before, real = paths(tmp_path), getattr(Path, name)

    def failing(path: Path, *arguments: Any, **options: Any) -> Any:
        if "batch_" in str(path):
            full()
        return real(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, name, failing)
        with pytest.raises(OSError, match="No space"):
            store.create("acme", BatchPlan(CHAT, file.id))
    assert paths(tmp_path) == before
    assert store.create("acme", BatchPlan(CHAT, file.id)).status is BatchStatus.VALIDATING


def test_a_wish_to_cancel_that_cannot_be_written_is_an_error_and_no_silent_success(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = store.create("acme", BatchPlan(CHAT, upload(store).id))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", full)
        with pytest.raises(OSError, match="No space"):
            store.cancel("acme", record.id)
    assert store.find("acme", record.id)[1].cancelled_at is None
    assert store.cancel("acme", record.id)[1].cancelled_at is not None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE])
async def test_a_process_starts_while_its_folder_fails_and_takes_batches_once_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(batch_desk, "LOOK_S", 0.01)
    root = tmp_path / "batches"

    def failing(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", failing)
        desk = BatchDesk(root, FileBounds(), 1, NoMetrics())
    desk.start(None)  # type: ignore[arg-type]
    await until(lambda: (root / "active").is_dir() and (root / "tenants").is_dir())
    await desk.stop()


def test_a_folder_that_is_a_file_stops_the_process_that_was_given_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(OSError, match="file"):
        BatchDesk(path, FileBounds(), 1, NoMetrics())
