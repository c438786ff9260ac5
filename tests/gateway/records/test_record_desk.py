"""Records of all processes of a gateway: asked over sockets in their folder, and those that do not answer are named."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from baton_gateway import sibling_sockets
from baton_gateway.records import record_ring
from baton_gateway.records.record_desk import RecordDesk
from baton_gateway.records.record_query import ProcessRecords, RecordQuery, RecordsPage, answer_query, for_tenant
from baton_gateway.records.record_ring import RecordRing
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_gateway.requests.record_keeping import refused_trail
from baton_gateway.sibling_sockets import SiblingSockets
from baton_wire.fair_loop.charging import CHARGE, LoopAccount


def filled(*ids: str, most: int = 10) -> RecordRing:
    ring = RecordRing(most)
    for place, name in enumerate(ids):
        trail = Trail(float(place))
        trail.mark(place + 1.0, Moment.ENDED, text="finished")
        ring.add(keep(trail, TrailFacts(name, "t", "m", "finished", "", float(place))))
    return ring


async def test_the_parent_asks_its_children(tmp_path: Path) -> None:
    child, parent = RecordDesk(filled("a", "b"), tmp_path, 1), RecordDesk(None, tmp_path, 1)
    await child.start()
    page = await parent.ask(RecordQuery(id="b"))
    await child.stop()
    assert [record.id for record in page.records] == ["b"]
    assert [process.kept for process in page.processes] == [2]
    assert page.silent == []
    assert os.listdir(tmp_path) == []


async def test_a_child_that_is_not_there_is_named(tmp_path: Path) -> None:
    page = await RecordDesk(filled("a"), tmp_path, 2).ask(RecordQuery())
    assert ([record.id for record in page.records], page.silent) == (["a"], [0])


async def test_a_child_that_hangs_is_named_and_one_that_died_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sibling_sockets, "ANSWER_S", 0.05)
    hanging, dead = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    hanging.bind(str(tmp_path / "records-7.sock"))
    hanging.listen()
    dead.bind(str(tmp_path / "records-8.sock"))
    dead.close()
    page = await RecordDesk(None, tmp_path, 1).ask(RecordQuery())
    hanging.close()
    assert page.silent == [7]
    assert not (tmp_path / "records-8.sock").exists()


async def test_garbage_from_another_process_ends_its_question_alone(tmp_path: Path) -> None:
    desk = RecordDesk(filled("a"), tmp_path, 1)
    await desk.start()
    [name] = os.listdir(tmp_path)
    reader, writer = await asyncio.open_unix_connection(tmp_path / name)
    writer.write(b'{"id": 7}\n')
    assert await reader.read() == b""
    writer.close()
    assert len((await RecordDesk(None, tmp_path, 1).ask(RecordQuery())).records) == 1
    await desk.stop()


def test_older_records_make_room_and_are_counted() -> None:
    ring = filled("a", "b", "c", most=2)
    assert [kept.id for kept in ring.latest()] == ["c", "b"]
    assert ring.fell_out == 1
    small = RecordRing(10, max_bytes=1)
    small.add(keep(Trail(0.0), TrailFacts("a", "t", "m", "finished", "", 0.0)))
    assert (len(small), small.fell_out) == (0, 1)


def test_a_tenant_sees_how_many_processes_did_not_answer_and_not_which() -> None:
    page = for_tenant(RecordsPage([], [ProcessRecords(6, 1, 0)], [0, 7]))
    assert (page.processes, page.silent) == ([], [0, 0])


def test_a_search_decodes_only_records_that_may_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may ask for ids without end, and each process has 10,000 records."""
    ring, decoded = filled("a1", "b2", "c3"), list[bytes]()
    for id_ in ("d4", "e5"):
        ring.add_refused(refused_trail(id_, "t", "rate_limit_exceeded", 0.0, 0.1))
    real = record_ring._kept_decoder

    def decode(content: bytes) -> object:
        decoded.append(content)
        return real.decode(content)

    monkeypatch.setattr(record_ring, "_kept_decoder", SimpleNamespace(decode=decode))
    queries = RecordQuery("nosuch"), RecordQuery("b2"), RecordQuery("e5"), RecordQuery(tenant="nobody")
    for query, number in zip(queries, (0, 1, 1, 0), strict=True):
        decoded.clear()
        assert len(answer_query(ring, query).records) == len(decoded) == number


async def test_questions_of_other_processes_are_charged_as_those_of_one_more_tenant(tmp_path: Path) -> None:
    charged: list[LoopAccount] = []

    def answer(question: bytes) -> bytes:
        charge = CHARGE.get()
        assert charge is not None
        charged.append(charge.account)
        return b"{}"

    asked = SiblingSockets(tmp_path, "records-", answer, logging.getLogger())
    await asked.start()
    await SiblingSockets(tmp_path, "records-", None, logging.getLogger()).ask(b"?")
    await asked.stop()
    assert [(account.name, account.is_service, account.weight) for account in charged] == [("siblings", False, 1.0)]
