"""The summary of measured links."""

from __future__ import annotations

from baton_kv_transfer.transports.bandwidth import LinkReport, lanes
from baton_wire.messages.measures import Lanes


def link(lane: str, bytes_per_s: float | None, below: bool | None = None) -> LinkReport:
    return LinkReport("10.0.0.1:7000", "tcp", lane, bytes_per_s, below)


def test_the_slowest_measured_link_is_told_and_an_unmeasured_one_is_not_zero() -> None:
    assert lanes(()) is None
    assert lanes((link("tcp x1", None),)) is None
    summary = lanes((link("tcp x1", None), link("cuda_ipc/cuda", 3e11, below=False), link("tcp x4", 1e9, below=True)))
    assert summary == Lanes(measured=2, too_slow=1, slowest="tcp x4", slowest_bytes_per_s=1e9)
