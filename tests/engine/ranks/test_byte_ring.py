"""Frames through a ring: any length, around its end, by two threads at once, a reader that is gone."""

from __future__ import annotations

import os
import random
import threading

import pytest

from baton_engine.collectives.collective import RankLostError
from baton_engine.ranks.byte_ring import RingParts, RingReader, RingWriter

SIZE = 64


def ends(size: int = SIZE) -> tuple[RingParts, RingWriter, RingReader]:
    """The two ends of a ring, each with a map of its own."""
    parts = RingParts.create(size)
    other = RingParts.attach([os.dup(descriptor) for descriptor in parts.descriptors], size)
    return parts, RingWriter(parts), RingReader(other)


def test_frames_come_out_in_order_and_whole() -> None:
    _, writer, reader = ends(1 << 12)
    frames = [b"", b"a", b"bc" * 100, b""]
    for frame in frames:
        writer.send(frame, 1.0)
    assert [reader.take() for _ in range(5)] == [*frames, None]


@pytest.mark.parametrize("length", [0, 1, SIZE - 9, SIZE - 8, SIZE - 7, SIZE, 2 * SIZE - 8, 1_000, 100_000])
def test_a_frame_of_any_length_passes_a_small_ring(length: int) -> None:
    _, writer, reader = ends()
    frame = random.Random(length).randbytes(length)
    sender = threading.Thread(target=writer.send, args=(frame, 60.0))
    sender.start()
    assert reader.receive(60.0) == frame
    sender.join(60)


def test_many_random_frames_wrap_around_the_end() -> None:
    _, writer, reader = ends()
    chance = random.Random(7)
    frames = [chance.randbytes(chance.choice((0, 1, 7, 8, 20, 55, 56, 57, 300))) for _ in range(3_000)]

    def send_all() -> None:
        for frame in frames:
            writer.send(frame, 60.0)

    sender = threading.Thread(target=send_all)
    sender.start()
    assert [reader.receive(60.0) for _ in frames] == frames
    sender.join(60)
    assert reader.take() is None


def test_a_frame_that_has_arrived_in_part_is_not_taken_yet() -> None:
    _, writer, reader = ends()
    frame = bytes(range(200))
    sender = threading.Thread(target=writer.send, args=(frame, 60.0))
    sender.start()
    taken = reader.take()
    while taken is None:
        taken = reader.receive(0.01)
    assert taken == frame
    sender.join(60)


def test_nothing_comes_within_the_deadline() -> None:
    _, _, reader = ends()
    assert reader.receive(0.01) is None


def test_a_writer_gives_up_when_the_reader_does_not_read() -> None:
    _, writer, _ = ends()
    with pytest.raises(RankLostError, match=r"a frame was not read for 0\.05 s"):
        writer.send(bytes(SIZE), 0.05)


def test_a_writer_that_waits_learns_that_the_reader_is_gone() -> None:
    def check() -> None:
        raise RankLostError("rank 1 is gone")

    _, writer, _ = ends()
    with pytest.raises(RankLostError, match="rank 1 is gone"):
        writer.send(bytes(SIZE), 60.0, check)


def test_a_length_that_no_writer_wrote_is_refused() -> None:
    parts, writer, reader = ends()
    parts.memory.bytes[:8] = b"\xff" * 8
    parts.written.add(8)
    with pytest.raises(RankLostError, match="the ring was overwritten"):
        reader.take()
    del writer


def test_closing_gives_all_descriptors_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    RingParts.create(SIZE).close()
    assert set(os.listdir("/proc/self/fd")) == before
