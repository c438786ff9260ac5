"""The readers of a machine's facts: this machine's, and folders as the kernel has them elsewhere."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from baton_local.__main__ import main
from baton_local.doctor import machine_reading
from baton_local.doctor.deadline import read_within
from baton_local.doctor.machine_facts import RdmaPort
from baton_local.doctor.machine_reading import (
    _fetch_host,
    may_open_rdma,
    read_cpu_pressure,
    read_folder,
    read_machine,
    read_network,
    read_port,
    read_rdma,
    read_torch,
)
from baton_local.fleet import gpu_room
from baton_local.fleet.gpu_room import read_gpus


def test_a_reader_that_never_answers_delays_nothing_beyond_the_deadline() -> None:
    forever = threading.Event()

    def refuse() -> object:
        raise OSError("no such file")

    began = time.monotonic()
    facts = read_within({"slow": forever.wait, "quick": lambda: 7, "refused": refuse}, 0.3)
    forever.set()
    assert facts == {"quick": 7}
    assert time.monotonic() - began < 30


def test_all_answers_end_the_wait() -> None:
    assert read_within({"a": lambda: None, "b": lambda: 2}, 60.0) == {"a": None, "b": 2}
    assert read_within({}, 60.0) == {}


def install_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a driver with an `nvidia-smi` that is a shell script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(machine_reading, "GPU_LIST", folder)


def test_a_driver_that_answers_too_late_is_unknown_and_not_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nvidia_smi(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setattr(gpu_room, "QUERY_S", 0.2)
    facts = read_machine(0, 30.0, {"HTTPS_PROXY": "http://localhost:1"})
    assert (facts.gpus, facts.pci) == (None, None)
    assert read_gpus() == ()


def test_a_driver_that_lists_no_gpu_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvidia_smi(tmp_path, "echo No devices were found; exit 6", monkeypatch)
    facts = read_machine(0, 30.0, {"HTTPS_PROXY": "http://localhost:1"})
    assert (facts.gpus, facts.pci) == ((), ())


def test_this_machine_is_read(tmp_path: Path) -> None:
    facts = read_machine(0, 30.0, {"XDG_CACHE_HOME": str(tmp_path), "HTTPS_PROXY": "http://localhost:1"})
    assert facts.python >= (3, 11)
    assert facts.torch == read_torch()
    assert facts.torch is not None
    assert facts.cache is not None
    assert facts.cache.path == f"{tmp_path}/baton/models"
    assert facts.resolves_hub is True, "a proxy resolves the hub's name"
    for known in (facts.shm_bytes, facts.open_files, facts.cpus, facts.free_bytes, facts.run_folder, facts.port):
        assert known is not None


def test_the_wait_for_a_cpu_is_read_from_the_container_before_the_machine(tmp_path: Path) -> None:
    own, whole = tmp_path / "own", tmp_path / "whole"
    assert read_cpu_pressure((own, whole)) is None
    whole.write_text("some avg10=91.41 avg60=85.43 avg300=82.03 total=549\nfull avg10=0.00 avg60=0.00 total=0\n")
    assert read_cpu_pressure((own, whole)) == pytest.approx(0.8543)
    own.write_text("some avg10=0.00 avg60=2.00 avg300=0.00 total=9\n")
    assert read_cpu_pressure((own, whole)) == pytest.approx(0.02)
    own.write_text("")
    assert read_cpu_pressure((own,)) is None


def test_rdma_devices_and_interfaces_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    assert read_rdma(tmp_path / "none") == ()
    port = tmp_path / "rdma" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert read_rdma(tmp_path / "rdma") == (RdmaPort("mlx5_0/1", "ACTIVE", "400 Gb/sec (4X NDR)"),)
    assert may_open_rdma(tmp_path / "rdma") is None
    for name, state, speed in (("eth0", "up", "25000"), ("eth1", "down", "1000"), ("eth2", "up", "-1")):
        (tmp_path / "net" / name / "device").mkdir(parents=True)
        (tmp_path / "net" / name / "operstate").write_text(f"{state}\n")
        (tmp_path / "net" / name / "speed").write_text(f"{speed}\n")
    (tmp_path / "net" / "veth1").mkdir()
    assert read_network(tmp_path / "net") == {"eth0": 25_000, "eth2": None}


def test_a_folder_counts_by_its_nearest_parent(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "a" / "b").problem is None
    (tmp_path / "file").write_text("")
    assert "is no folder" in str(read_folder(tmp_path / "file" / "b").problem)
    assert not (tmp_path / "a").exists()


def test_a_taken_port_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = read_port(server.getsockname()[1])
    assert (port.is_free, port.used_by) == (False, None)


def test_the_host_of_a_fetch_is_the_hub_or_the_proxy() -> None:
    assert _fetch_host({}) == "huggingface.co"
    assert _fetch_host({"HTTPS_PROXY": "http://proxy.example:3128"}) == "proxy.example"
    assert _fetch_host({"https_proxy": "proxy.example:3128"}) == "proxy.example"


def test_the_command_prints_what_programs_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://localhost:1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "baton").mkdir(mode=0o755)
    os.chmod(tmp_path / "baton", 0o755)
    assert main(["doctor", "--format", "json", "--timeout", "30s"]) == 1
    page = json.loads(capsys.readouterr().out)
    [folder] = [finding for finding in page["findings"] if finding["check"] == "run folder"]
    assert folder["state"] == "failed"
    assert "0700" in folder["text"]
    assert folder["fix"].startswith(f"chmod 700 {tmp_path}/baton")
