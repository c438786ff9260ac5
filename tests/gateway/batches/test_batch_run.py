"""One batch at work, with answers and disks that fail as the tests say."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from baton_gateway.batches import batch_desk, batch_run
from baton_gateway.batches.answer_journal import AnswerJournal
from baton_gateway.batches.batch_desk import BatchDesk
from baton_gateway.batches.batch_record import KEPT_S, WINDOW_S, BatchRecord, BatchStatus, BatchWish, batch_object
from baton_gateway.batches.batch_run import LineAnswer
from baton_gateway.batches.batch_store import BatchPlan
from baton_gateway.batches.file_store import FileBounds
from baton_gateway.batches.lines import ANSWER_PREFIX, BatchLine
from baton_testing.gateway.batch_client import line
from baton_testing.gateway.gateway_process import until

CHAT = "/v1/chat/completions"
DONE = LineAnswer(200, b'{"ok":true}', "req-1")
BUSY = LineAnswer(429, b"{}", "req-1", is_transient=True, retry_after_s=3_600.0)


class Counted:
    """Counts what became of lines and batches."""

    def __init__(self) -> None:
        self.lines = Counter[str]()
        self.ended = Counter[BatchStatus]()

    def batch_ended(self, status: BatchStatus) -> None:
        self.ended[status] += 1

    def batch_lines(self, result: str, lines: int = 1) -> None:
        self.lines[result] += lines

    def sample_batches(self, running: int, paused: int) -> None: ...


class Answers:
    """Answers lines by a function of the test, and notes which ones."""

    def __init__(self, answer: Callable[[str, str], LineAnswer | None] = lambda tenant, custom_id: DONE) -> None:
        self.decide = answer
        """None: the line is at a worker for ever."""
        self.asked = Counter[str]()

    async def answer(self, tenant: str, line: BatchLine) -> LineAnswer:
        self.asked[line.custom_id] += 1
        answer = self.decide(tenant, line.custom_id)
        return answer or await asyncio.get_running_loop().create_future()

    def context(self, tenant: str) -> contextvars.Context:
        return contextvars.copy_context()


class Service:
    """The batches of one process."""

    def __init__(self, root: Path, answers: Answers, concurrency: int = 4) -> None:
        self.metrics, self.answers = Counted(), answers
        self.desk = BatchDesk(root, FileBounds(), concurrency, self.metrics)
        self.desk.start(answers)

    def begin(self, lines: int, tenant: str = "acme") -> str:
        upload = self.desk.files.open_upload(tenant)
        upload.write("".join(line(f"{tenant}{at}") for at in range(lines)).encode())
        file = upload.finish("in.jsonl", "batch", KEPT_S, FileBounds())
        upload.close()
        record = self.desk.store.create(tenant, BatchPlan(CHAT, file.id))
        self.desk.wake.set()
        return record.id

    def find(self, batch_id: str, tenant: str = "acme") -> tuple[BatchRecord, BatchWish]:
        return self.desk.store.find(tenant, batch_id)

    async def until_ended(self, batch_id: str, tenant: str = "acme") -> BatchRecord:
        await until(lambda: self.find(batch_id, tenant)[0].status.has_ended)
        return self.find(batch_id, tenant)[0]

    def read(self, record: BatchRecord) -> tuple[list[str], list[str]]:
        """The ids of lines in the output file, and in the error file."""
        return self._ids(record, record.output_file_id), self._ids(record, record.error_file_id)

    def _ids(self, record: BatchRecord, file_id: str) -> list[str]:
        path = self.desk.files.folder(record.tenant).files / f"{file_id}.data"
        content = path.read_bytes().splitlines() if path.exists() else []
        return sorted(msgspec.json.decode(answer)["custom_id"] for answer in content)


def ids(lines: int, tenant: str = "acme") -> list[str]:
    return sorted(f"{tenant}{at}" for at in range(lines))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (batch_run, "WATCH_S"),
        (batch_run, "PAUSE_S"),
        (batch_desk, "LOOK_S"),
        (batch_desk, "AGAIN_S"),
    ):
        monkeypatch.setattr(module, name, 0.01)


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "storage_full"), (errno.EROFS, "storage_unavailable"), (errno.EIO, "storage_unavailable")],
)
async def test_a_disk_that_takes_no_answers_pauses_the_batch_and_none_is_lost_or_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    write, fails = os.write, True

    def failing(descriptor: int, content: bytes) -> int:
        if fails and bytes(content).startswith(ANSWER_PREFIX):
            raise OSError(number, os.strerror(number))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", failing)
    service = Service(tmp_path, Answers())
    batch_id = service.begin(20)
    await until(lambda: service.find(batch_id)[1].pause is not None)
    shown = batch_object(*service.find(batch_id))
    assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("in_progress", code)
    assert shown["request_counts"]["completed"] == 0
    fails = False
    record = await service.until_ended(batch_id)
    await service.desk.stop()
    assert (record.status, record.completed) == (BatchStatus.COMPLETED, 20)
    assert service.read(record) == (ids(20), [])
    assert set(service.answers.asked.values()) == {1}
    assert batch_object(*service.find(batch_id))["errors"] is None


async def test_a_record_that_cannot_be_written_is_written_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, fails = Path.replace, False

    def failing(path: Path, target: Path) -> Path:
        if fails and path.name.startswith(".record"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    service = Service(tmp_path, Answers())
    batch_id = service.begin(8)
    fails = True
    await until(lambda: service.find(batch_id)[1].pause is not None)
    fails = False
    record = await service.until_ended(batch_id)
    await service.desk.stop()
    assert service.read(record) == (ids(8), [])
    assert record.status is BatchStatus.COMPLETED


async def test_an_input_that_cannot_be_read_for_a_while_pauses_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, fails = batch_run._next_lines, True

    def failing(lines: Iterator[BatchLine], journal: AnswerJournal) -> list[BatchLine]:
        if fails and journal.completed:
            raise OSError(errno.EIO, "Input/output error")
        return read(lines, journal)

    monkeypatch.setattr(batch_run, "_next_lines", failing)
    service = Service(tmp_path, Answers())
    batch_id = service.begin(40)
    await until(lambda: service.find(batch_id)[1].pause is not None)
    fails = False
    record = await service.until_ended(batch_id)
    await service.desk.stop()
    assert service.read(record) == (ids(40), [])


async def test_a_tenant_whose_lines_wait_holds_no_slots_that_others_could_use(tmp_path: Path) -> None:
    answers = Answers(lambda tenant, custom_id: BUSY if tenant == "acme" else DONE)
    service = Service(tmp_path, answers, concurrency=2)
    waiting = service.begin(50)
    await until(lambda: len(answers.asked) == 2)
    other = service.begin(9, "other")
    record = await service.until_ended(other, "other")
    assert service.read(record) == (ids(9, "other"), [])
    assert service.find(waiting)[0].status is BatchStatus.IN_PROGRESS
    assert len([name for name in answers.asked if name.startswith("acme")]) == 2, "a batch has few lines in memory"
    await service.desk.stop()


async def test_answers_are_part_of_what_a_tenant_may_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one tenant's answers, some megabytes a line with log probabilities, fill the disk of all others."""
    monkeypatch.setattr(batch_run, "SIZE_S", 0.0)

    class Slow(Answers):
        async def answer(self, tenant: str, line: BatchLine) -> LineAnswer:
            await asyncio.sleep(0.02)
            return await super().answer(tenant, line)

    large = LineAnswer(200, b'{"text":"%s"}' % (b"x" * 1_000), "req-1")
    service = Service(tmp_path, Slow(lambda tenant, custom_id: large if tenant == "acme" else DONE), concurrency=2)
    object.__setattr__(service.desk.files.bounds, "all_bytes", 200_000)
    old = service.desk.files.open_upload("acme")
    old.write(b"x" * 150_000)
    file = old.finish("old.jsonl", "batch", KEPT_S, service.desk.files.bounds)
    old.close()
    batch_id, other = service.begin(100), service.begin(9, "other")

    await until(lambda: getattr(service.find(batch_id)[1].pause, "code", "") == "file_quota_exceeded")
    asked = len(service.answers.asked)
    await service.until_ended(other, "other")
    await asyncio.sleep(0.2)
    assert len(service.answers.asked) <= asked + 9 + 2 < 100
    [run] = service.desk._runs.values()
    await run._disk(run.note, None)  # as for an answer that could not be written at first
    await until(lambda: getattr(service.find(batch_id)[1].pause, "code", "") == "file_quota_exceeded")
    service.desk.store.delete_file("acme", file.id)
    record = await service.until_ended(batch_id)
    await service.desk.stop()
    assert service.read(record) == (ids(100), [])


async def test_a_tenant_whose_lines_take_for_ever_leaves_slots_for_others(tmp_path: Path) -> None:
    service = Service(tmp_path, Answers(lambda tenant, custom_id: None if tenant == "acme" else DONE), concurrency=8)
    for _ in range(2):
        service.begin(50)
    await until(lambda: len(service.answers.asked) >= 7)
    other = service.begin(20, "other")
    record = await service.until_ended(other, "other")
    assert service.read(record) == (ids(20, "other"), [])
    await service.desk.stop()


async def test_a_line_that_the_server_fails_is_tried_again_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = asyncio.sleep

    async def short(delay: float, result: object = None) -> None:
        await real(min(delay, 0.01))

    failed = LineAnswer(500, b'{"error":{"message":"x"}}', "req-1")
    service = Service(tmp_path, Answers(lambda tenant, custom_id: failed if custom_id == "acme1" else DONE))
    monkeypatch.setattr(asyncio, "sleep", short)
    record = await service.until_ended(service.begin(3))
    await service.desk.stop()
    assert service.read(record) == (["acme0", "acme2"], ["acme1"])
    assert service.answers.asked == {"acme0": 1, "acme1": 3, "acme2": 1}
    assert (record.completed, record.failed, service.metrics.lines["retried"]) == (2, 1, 2)


@pytest.mark.parametrize("ends", ["cancelled", "expired"])
async def test_a_batch_that_ends_while_lines_run_has_each_line_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    service = Service(tmp_path, Answers(lambda tenant, custom_id: DONE if custom_id < "acme5" else None), 8)
    batch_id = service.begin(9)
    await until(lambda: service.find(batch_id)[0].completed == 5)
    if ends == "cancelled":
        record, wish = service.desk.store.cancel("acme", batch_id)
        assert batch_object(record, wish)["status"] in ("cancelling", "cancelled")
    else:
        await service.desk.stop()
        expire(service, batch_id)
        service = Service(tmp_path, Answers())
    record = await service.until_ended(batch_id)
    await service.desk.stop()
    assert record.status == ends
    output, errors = service.read(record)
    assert output == ids(5)
    assert errors == ([] if ends == "cancelled" else ["acme5", "acme6", "acme7", "acme8"])
    assert (record.completed, record.failed, record.total) == (5, len(errors), 9)
    if ends == "expired":
        assert not service.answers.asked
        assert service.metrics.lines == {"expired": 4}


def expire(service: Service, batch_id: str) -> None:
    """Let the window of a batch be over for its next owner."""
    record, _ = service.find(batch_id)
    service.desk.store.folder(service.desk.store.active()[0]).write(
        msgspec.structs.replace(record, expires_at=int(time.time()) - 1, created_at=record.created_at - WINDOW_S)
    )


async def test_a_batch_whose_input_is_gone_fails_by_the_field(tmp_path: Path) -> None:
    service = Service(tmp_path, Answers())
    upload = service.desk.files.open_upload("acme")
    upload.write(line("a").encode())
    file = upload.finish("in.jsonl", "batch", KEPT_S, FileBounds())
    upload.close()
    (service.desk.files.folder("acme").files / f"{file.id}.data").unlink()
    batch_id = service.desk.store.create("acme", BatchPlan(CHAT, file.id)).id
    record = await service.until_ended(batch_id)
    await service.desk.stop()
    assert (record.status, record.errors[0].code, record.errors[0].param) == (
        BatchStatus.FAILED,
        "file_not_found",
        "input_file_id",
    )


async def test_a_kill_between_the_two_renames_of_publishing_loses_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, kills = Path.rename, 1

    def killed(path: Path, target: Path) -> Path:
        nonlocal kills
        if path.name == "errors.jsonl" and kills:
            kills -= 1
            raise RuntimeError("the process is gone")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    refused = LineAnswer(400, b'{"error":{"message":"x"}}', "req-1")
    service = Service(tmp_path, Answers(lambda tenant, custom_id: refused if custom_id == "acme1" else DONE))
    record = await service.until_ended(service.begin(4))
    await service.desk.stop()
    assert kills == 0
    assert service.read(record) == (["acme0", "acme2", "acme3"], ["acme1"])
    assert (record.status, record.has_output, record.has_errors) == (BatchStatus.COMPLETED, True, True)
    assert len(service.desk.files.list_all("acme")) == 3


async def test_two_processes_share_a_folder_and_each_line_is_asked_once(tmp_path: Path) -> None:
    answers = Answers()
    services = [Service(tmp_path, answers) for _ in range(2)]
    batches = [services[at % 2].begin(20, f"team{at}-") for at in range(6)]
    for at, batch_id in enumerate(batches):
        record = await services[(at + 1) % 2].until_ended(batch_id, f"team{at}-")
        assert services[0].read(record) == (ids(20, f"team{at}-"), [])
    await until(lambda: sum(service.metrics.ended.total() for service in services) == len(batches))
    for service in services:
        await service.desk.stop()
    assert len(answers.asked) == 120
    assert set(answers.asked.values()) == {1}


async def test_a_process_ends_although_its_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    service = Service(tmp_path, Answers())
    monkeypatch.setattr(batch_desk, "STOP_S", 0.05)

    def hang(*arguments: object, **options: object) -> None:
        released.wait(60.0)

    monkeypatch.setattr(AnswerJournal, "write", hang)
    service.begin(1)
    await until(lambda: bool(service.answers.asked))
    await asyncio.sleep(0.05)
    try:
        await service.desk.stop()
        assert service.desk._tasks, "the batch is still owned, as its thread may write"
    finally:
        released.set()
    await until(lambda: not service.desk._tasks)


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
async def test_a_clock_that_steps_by_an_hour_ends_no_batch_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    real, stepped, may_go_on = time.time, 0.0, asyncio.Event()

    class Slow(Answers):
        async def answer(self, tenant: str, line: BatchLine) -> LineAnswer:
            if len(self.asked) >= 10:
                await may_go_on.wait()
            return await super().answer(tenant, line) or DONE

    monkeypatch.setattr(time, "time", lambda: real() + stepped)
    services = [Service(tmp_path, Slow()) for _ in range(2)]
    batch_id = services[0].begin(40)
    await until(lambda: sum(len(service.answers.asked) for service in services) >= 10)
    stepped = step_s
    services[1].desk._swept_s = -1e9  # a sweep is due, by the stepped clock
    waiting = services[1].begin(5, "other")
    may_go_on.set()
    for service in services:
        monkeypatch.setattr(service.desk, "_swept_s", -1e9)
    record, other = await services[1].until_ended(batch_id), await services[0].until_ended(waiting, "other")
    for service in services:
        await service.desk.stop()
    assert (record.status, other.status) == (BatchStatus.COMPLETED, BatchStatus.COMPLETED)
    assert services[0].read(record) == (ids(40), [])
    asked = Counter[str]()
    for service in services:
        asked += service.answers.asked
    assert set(asked.values()) == {1}
