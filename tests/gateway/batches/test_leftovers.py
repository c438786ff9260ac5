"""What kills leave in the folder of files and batches, at any instant of a call."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from baton_gateway.batches.answer_journal import AnswerJournal
from baton_gateway.batches.batch_desk import BatchDesk
from baton_gateway.batches.batch_record import KEPT_S, BatchRecord, BatchStatus
from baton_gateway.batches.batch_store import MAX_ACTIVE, ActiveBatch, BatchPlan, BatchStore
from baton_gateway.batches.file_store import FileBounds, FileStore, StoredFile
from baton_gateway.batches.folder import check_batch_folder
from baton_gateway.batches.lines import answer_line
from baton_gateway.errors import RefusedError

TENANT = "acme"
HOUR_S = 3_600.0
CHAT = "/v1/chat/completions"


class KilledError(BaseException):
    """The end of a process, which no handler sees."""


class NoMetrics:
    def batch_ended(self, status: BatchStatus) -> None: ...

    def batch_lines(self, result: str, lines: int = 1) -> None: ...

    def sample_batches(self, running: int, paused: int) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    check_batch_folder(tmp_path)
    return BatchStore(tmp_path, FileStore(tmp_path, FileBounds()))


def upload(store: BatchStore, content: bytes = b"x\n", kept_s: int = KEPT_S) -> StoredFile:
    upload = store.files.open_upload(TENANT)
    try:
        upload.write(content)
        return upload.finish("in.jsonl", "batch", kept_s, store.files.bounds)
    finally:
        upload.close()


def create(store: BatchStore) -> BatchRecord:
    return store.create(TENANT, BatchPlan(CHAT, upload(store).id))


def data_files(store: BatchStore) -> list[str]:
    return [path.name for path in store.files.folder(TENANT).files.iterdir()]


def make_old(folder: Path) -> None:
    """Let two hours go by for everything in a folder."""
    for path in folder.rglob("*"):
        at_s = path.stat().st_mtime - 2 * HOUR_S
        os.utime(path, (at_s, at_s))


@pytest.mark.parametrize("call", ["mkdir", "write_bytes", "touch", "replace"])
def test_a_creation_that_is_killed_counts_for_a_minute_and_leaves_nothing(
    store: BatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = upload(store)
    real = getattr(Path, call)

    def killed(path: Path, *arguments: object, **options: object) -> object:
        if store.active() and ("batch_" in str(path)):
            raise KilledError
        return real(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, call, killed)
        with pytest.raises(KilledError):
            store.create(TENANT, BatchPlan(CHAT, file.id))
    desk = BatchDesk(tmp_path, FileBounds(), 1, NoMetrics())
    [active] = store.active()
    forget(desk, active)
    assert store.active() == [active], "it may be in creation"
    make_old(tmp_path)
    forget(desk, active)
    assert store.active() == []
    assert list(store.files.folder(TENANT).batches.iterdir()) == []


def forget(desk: BatchDesk, active: ActiveBatch) -> None:
    """Do with a batch without a record what the look for batches does."""
    owner = desk._claim(active)
    if owner is not None:
        desk.store.forget_orphan(active, time.time())
        os.close(owner)


def test_a_batch_whose_record_cannot_be_read_keeps_its_answers(store: BatchStore, tmp_path: Path) -> None:
    record = create(store)
    [active] = store.active()
    folder = store.folder(active).path
    (folder / "record.json").write_bytes(b"{")
    (folder / "output.jsonl").write_bytes(b"answers\n")
    make_old(tmp_path)
    store.forget_orphan(active, time.time())
    assert store.active() == []
    assert (folder / "output.jsonl").read_bytes() == b"answers\n"
    with pytest.raises(RefusedError):
        store.find(TENANT, record.id)


def test_bytes_of_a_file_that_never_became_one_are_deleted_after_an_hour(store: BatchStore, tmp_path: Path) -> None:
    kept = upload(store)
    for name in ("file-" + "a" * 32 + ".data", ".file-" + "b" * 32 + ".json.0a1b2c3d"):
        (store.files.folder(TENANT).files / name).write_bytes(b"x")
    store.sweep(time.time())
    assert len(data_files(store)) == 4
    make_old(tmp_path)
    store.sweep(time.time())
    assert sorted(data_files(store)) == [f"{kept.id}.data", f"{kept.id}.json"]


def test_answers_that_are_about_to_be_published_are_not_taken_for_leftovers(store: BatchStore, tmp_path: Path) -> None:
    record = create(store)
    (store.files.folder(TENANT).files / f"{record.output_file_id}.data").write_bytes(b"answers\n")
    make_old(tmp_path)
    store.sweep(time.time())
    assert f"{record.output_file_id}.data" in data_files(store)


def test_expired_files_go_but_the_input_of_a_batch_that_has_not_ended_stays(store: BatchStore) -> None:
    files = [upload(store, kept_s=60), upload(store, kept_s=60)]
    store.create(TENANT, BatchPlan(CHAT, files[0].id))
    later_s = time.time() + HOUR_S
    store.sweep(later_s)
    assert {name.partition(".")[0] for name in data_files(store)} == {files[0].id}
    store.forget(store.active()[0])
    store.sweep(later_s)
    assert data_files(store) == []


def test_a_tenant_has_a_bounded_number_of_batches_that_have_not_ended(store: BatchStore) -> None:
    file = upload(store)
    for _ in range(MAX_ACTIVE):
        store.create(TENANT, BatchPlan(CHAT, file.id))
    with pytest.raises(RefusedError) as caught:
        store.create(TENANT, BatchPlan(CHAT, file.id))
    assert (caught.value.problem.status, caught.value.problem.code) == (429, "too_many_batches")
    other = store.files.open_upload("other")
    other.write(b"x")
    theirs = other.finish("in.jsonl", "batch", KEPT_S, FileBounds())
    other.close()
    assert store.create("other", BatchPlan(CHAT, theirs.id)).status is BatchStatus.VALIDATING


@pytest.mark.parametrize("torn", [b"", b"{", b'{"id":"batch_req_0123', answer_line("c", 200, b"{}")[:-1]])
def test_a_torn_last_line_is_cut_off_and_its_request_is_not_answered(tmp_path: Path, torn: bytes) -> None:
    lines = [answer_line(custom_id, 200, b"{}") for custom_id in ("a", "b")]
    (tmp_path / "output.jsonl").write_bytes(b"".join(lines) + torn)
    journal = AnswerJournal(tmp_path)
    assert (journal.completed, journal.failed) == (2, 0)
    journal.write(answer_line("c", 200, b"{}"), is_error=False)
    journal.close()
    assert (tmp_path / "output.jsonl").read_bytes() == b"".join([*lines, answer_line("c", 200, b"{}")])


@pytest.mark.parametrize("ends", [True, False])
def test_a_line_that_a_failing_disk_tore_is_gone_even_if_it_cannot_be_cut_off_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    journal = AnswerJournal(tmp_path)
    journal.write(answer_line("a", 200, b"{}"), is_error=False)
    write = os.write
    room = 10

    def full(descriptor: int, content: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        room -= (written := write(descriptor, content[:room]))
        return written

    def failing(descriptor: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        patched.setattr(os, "ftruncate", failing)
        for _ in range(2):
            with pytest.raises(OSError, match=r"error|space"):
                journal.write(answer_line("b", 200, b"{}"), is_error=False)
    expected = answer_line("a", 200, b"{}")
    if ends:
        journal.sync()
    else:
        journal.write(answer_line("b", 200, b"{}"), is_error=False)
        expected += answer_line("b", 200, b"{}")
    journal.close()
    assert (tmp_path / "output.jsonl").read_bytes() == expected
