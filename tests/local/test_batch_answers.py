"""The output file of a batch: what a run finds in it, and that nobody else's bytes are ever touched."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from baton_gateway.batches.lines import BatchLine, answer_line, answered_id
from baton_local.batch.answers import Answers
from baton_local.errors import LocalError, StartError

A, B, C = (answer_line(name, 200, b'{"x":1}') for name in "abc")
IDS = [BatchLine(name, "", {}).id for name in "abc"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.write_text("{}\n")
    return path


def test_a_resumed_run_finds_whole_answers_and_cuts_off_the_torn_one(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    for torn in (C[:-7], C[:5], C[:1], b""):
        out.write_bytes(A + B + torn)
        with Answers(out, source) as answers:
            assert answers.done == {IDS[0], IDS[1]}
        assert out.read_bytes() == A + B


def test_the_torn_first_answer_of_an_interrupted_run_is_cut_off(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(A[:-9])
    with Answers(out, source) as answers:
        assert answers.done == set()
        answers.write(B)
    assert out.read_bytes() == B


def test_an_answer_that_lacks_only_its_line_end_is_kept(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(A + B[:-1])
    with Answers(out, source) as answers:
        assert answers.done == {IDS[0], IDS[1]}
        answers.write(C)
    assert out.read_bytes() == A + B + C


@pytest.mark.parametrize(
    "content",
    [
        b"precious single line without newline",
        b"precious\n",
        b"precious\n" + A,
        A + b"precious",
        A + b"precious\n",
        A + b"\n",
        b"{",
        b'{"id":"batch',
        b'{"id": 3}\n',
        b'{"id":"batch_req_6f","custom_id":"a","response":{"request_id":"of another","body":{}},"error":null}\n',
        bytes(range(256)),
    ],
)
def test_a_file_of_anybody_else_stays_as_it_is(tmp_path: Path, source: Path, content: bytes) -> None:
    out = tmp_path / "out"
    out.write_bytes(content)
    with pytest.raises(StartError, match=r"out.*not .*of a batch"):
        Answers(out, source)
    assert out.read_bytes() == content


@pytest.mark.parametrize("link", ["hard", "symbolic", "same"])
def test_the_input_is_never_the_output(tmp_path: Path, link: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text("{}")
    if link == "hard":
        os.link(source, out)
    elif link == "symbolic":
        out.symlink_to(source)
    else:
        out = source
    with pytest.raises(StartError, match="IN and OUT are the same file"):
        Answers(out, source)
    assert source.read_text() == "{}"


def test_what_cannot_be_read_again_is_named(tmp_path: Path, source: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for out in (pipe, Path("/dev/null"), tmp_path):
        with pytest.raises(StartError, match=f"{out}: not a file: OUT is read when a batch resumes"):
            Answers(out, source)
    with pytest.raises(StartError, match="pipe: not a file: IN is read twice"):
        Answers(tmp_path / "out", pipe)
    with pytest.raises(StartError, match="none: No such file"):
        Answers(tmp_path / "out", tmp_path / "none")
    with pytest.raises(StartError, match="out: No such file"):
        Answers(tmp_path / "none" / "out", source)


def test_a_second_run_is_kept_out(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    with Answers(out, source) as first:
        first.write(A)
        with pytest.raises(StartError, match="out: another `baton batch` is writing to it"):
            Answers(out, source)
    with Answers(out, source) as second:
        assert second.done == {IDS[0]}


def test_a_run_that_writes_nothing_leaves_no_new_file(tmp_path: Path, source: Path) -> None:
    (tmp_path / "old").touch()
    for name in ("new", "old"):
        with Answers(tmp_path / name, source):
            assert (tmp_path / name).exists()
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "old").exists()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    whole_write = os.write
    room = len(A) + 10

    def write(file: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "full")
        written = whole_write(file, data[:room])
        room -= written
        return written

    with monkeypatch.context() as patched, Answers(out, source) as answers:
        patched.setattr(os, "write", write)
        answers.write(A)
        with pytest.raises(LocalError, match="out: No space left on device"):
            answers.write(B)
    assert out.read_bytes() == A


def test_no_room_for_a_line_end_is_said_by_name(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.write_bytes(A + B[:-1])

    def write(file: int, data: bytes) -> int:
        raise OSError(errno.EDQUOT, "over quota")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(StartError, match="out: Disk quota exceeded"):
            Answers(out, source)
    assert out.read_bytes() == A + B[:-1]


def test_a_file_system_that_cannot_keep_what_it_took_is_named(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "broken")

    answers = Answers(tmp_path / "out", source)
    answers.write(A)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(LocalError, match="out: Input/output error; check its last answers"):
            answers.__exit__(None, None, None)


def test_only_our_own_answers_have_an_id() -> None:
    assert answered_id(A) == IDS[0] == json.loads(A)["id"]
    assert answered_id(A.replace(b'"request_id":"req_', b'"request_id":"req_0')) is None
    assert answered_id(b"") is None


def test_refusals_in_the_file_are_known_by_their_status(tmp_path: Path, source: Path) -> None:
    out, body = tmp_path / "out", b'{"error": {"message": "no such model"}}'
    out.write_bytes(A + answer_line("b", 404, body) + answer_line("c", 400, body)[:-1])
    with Answers(out, source) as answers:
        assert answers.refused == {IDS[1]: 404, IDS[2]: 400}
        assert answers.first_refusal == "b: no such model"


@pytest.mark.parametrize("is_linked", [False, True])
def test_dropped_refusals_leave_the_answers_their_mode_and_the_lock(
    tmp_path: Path, source: Path, is_linked: bool
) -> None:
    out, body = tmp_path / "out", b'{"error": {"message": "no such model"}}'
    out.write_bytes(answer_line("b", 404, body) + A + answer_line("d", 400, body)[:-1])
    out.chmod(0o640)
    named = out
    if is_linked:
        named = tmp_path / "link"
        named.symlink_to(out)
    with Answers(named, source) as answers:
        answers.drop_refused()
        assert (answers.done, answers.refused) == ({IDS[0]}, {})
        assert out.read_bytes() == A
        with pytest.raises(StartError, match="another `baton batch` is writing to it"):
            Answers(out, source)
        answers.write(B)
    assert out.read_bytes() == A + B
    assert out.stat().st_mode & 0o777 == 0o640
    assert named.is_symlink() is is_linked
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"in", "out", named.name})


def test_a_disk_that_is_full_while_refusals_are_dropped_leaves_the_file_as_it_is(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    out = tmp_path / "out"
    before = A + answer_line("b", 404, b'{"error": {"message": "no such model"}}')
    out.write_bytes(before)
    with Answers(out, source) as answers:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            with pytest.raises(LocalError, match="out: No space left on device; its refusals are left in it"):
                answers.drop_refused()
        assert out.read_bytes() == before
        answers.write(C)
    assert out.read_bytes() == before + C
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
