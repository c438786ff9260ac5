"""Files of metrics that processes share: their room, and what stays of processes that died."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from baton_gateway.reporting import metrics_page
from baton_gateway.reporting.metric_files import FILE_BYTES, METRICS_VARIABLE, absorb, claim, reserve

NAMES = {"counter": "requests_total", "gauge_livesum": "requests_running"}


def count(folder: Path, pid: int, number: float) -> None:
    """Count as a process does while it lives."""
    claim(str(folder), pid)
    for kind, name in NAMES.items():
        file = MmapedDict(str(folder / f"{kind}_{pid}.db"))  # type: ignore[no-untyped-call]
        file.write_value(mmap_key(name, name, [], [], "Requests"), number, 0.0)  # type: ignore[no-untyped-call]
        file.close()  # type: ignore[no-untyped-call]


def test_what_dead_processes_counted_stays_in_one_file(tmp_path: Path) -> None:
    reserve(str(tmp_path), processes=2)
    files = len(list(tmp_path.iterdir()))
    for pid in range(1_000, 1_050):
        count(tmp_path, pid, 2.0)
        absorb(str(tmp_path), pid)
        assert len(list(tmp_path.iterdir())) == files
    count(tmp_path, 7, 1.0)
    assert b"requests_total 101.0" in metrics_page.metrics_page(CollectorRegistry(), str(tmp_path))[0]


def test_a_process_that_died_in_the_middle_of_a_write_spoils_nothing(tmp_path: Path) -> None:
    reserve(str(tmp_path), processes=1)
    count(tmp_path, 7, 3.0)
    absorb(str(tmp_path), 7)
    (tmp_path / "counter_8.db").write_bytes((4_096).to_bytes(4, "little") + bytes(4) + b"\xff" * 100)
    absorb(str(tmp_path), 8)
    absorb(str(tmp_path), 9)  # one that ended before it had any
    assert b"requests_total 3.0" in metrics_page.metrics_page(CollectorRegistry(), str(tmp_path))[0]


def test_files_have_their_room_before_anything_starts_and_hand_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(str(tmp_path), processes=2)
    for path in tmp_path.iterdir():
        assert path.stat().st_blocks * 512 >= FILE_BYTES

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for pid in (7, 8):
        count(tmp_path, pid, 1.0)
    for former in range(7, 20):  # each dies, and its successor needs no room
        absorb(str(tmp_path), former)
        count(tmp_path, former + 2, 1.0)
    assert b"requests_total 15.0" in metrics_page.metrics_page(CollectorRegistry(), str(tmp_path))[0]
    with pytest.raises(OSError, match=r"No space left on device: '.*counter_99.db'"):
        claim(str(tmp_path), 99)
    with pytest.raises(OSError, match=r"No space left on device: '.*spare_counter_0'"):
        reserve(str(tmp_path), processes=3)


def test_all_series_fit_into_the_room_that_files_have(tmp_path: Path) -> None:
    """More series would grow a file beyond its allocated room."""
    lines = (
        "from prometheus_client import CollectorRegistry",
        "from baton_gateway.reporting.metrics import GatewayMetrics",
        "GatewayMetrics(CollectorRegistry())",
    )
    environment = {**os.environ, METRICS_VARIABLE: str(tmp_path)}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environment, check=True, timeout=60)
    used = {path.name.split("_")[0]: int.from_bytes(path.read_bytes()[:4], "little") for path in tmp_path.iterdir()}
    assert used.keys() == {"counter", "histogram", "gauge"}
    assert max(used.values()) <= FILE_BYTES / 2


def test_open_files_are_those_of_the_process_that_is_nearest_to_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_fds = {7: 600, 8: 500}

    class TwoProcesses:
        """What the collector reads of these processes."""

        def __init__(self, pid: Callable[[], int], registry: None) -> None:
            self._pid = pid()

        def collect(self) -> list[Metric]:
            gauges = {"process_open_fds": open_fds[self._pid], "process_max_fds": 1_000}
            return [GaugeMetricFamily(name, name, value=value) for name, value in gauges.items()]

    monkeypatch.setattr(metrics_page, "ProcessCollector", TwoProcesses)
    for pid in open_fds:
        (tmp_path / f"counter_{pid}.db").touch()
    values = {
        metric.name: metric.samples[0].value for metric in metrics_page.BuildAndProcesses(str(tmp_path)).collect()
    }
    assert values["process_open_fds"] == 600
    assert values["process_max_fds"] == 1_000
