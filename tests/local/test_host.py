"""The model, devices and port of this machine, and the fields that it cannot honour."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from baton_control.errors import UnsupportedError
from baton_control.worker_specs import Device
from baton_local.errors import StartError
from baton_local.fleet.host import devices, gpu_ids, model_directory, model_flag, reserve_port
from baton_testing.kube.manifests import deployment
from baton_wire.listening.sockets import bind
from baton_wire.messages.values import Role

GPU = {"resource": "nvidia.com/gpu"}
IP_LOCAL_PORT_RANGE = 51
"""Constant of <linux/in.h>; Python has no name for it."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "tiny"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_file_source_is_relative_to_the_manifest(tmp_path: Path, model: Path) -> None:
    wanted = deployment(model__source="file://models/tiny")
    assert model_directory(wanted, tmp_path / "file.yaml", {}) == model
    absolute = deployment(model__source=f"file://{model}")
    assert model_directory(absolute, Path("/elsewhere/file.yaml"), {}) == model


def test_a_random_model_is_its_configuration(tmp_path: Path, model: Path) -> None:
    wanted = deployment(model__source="random://models/tiny/config.json")
    assert model_flag(wanted, tmp_path / "file.yaml", {}) == f"random://{model / 'config.json'}"
    assert model_flag(deployment(model__source="file://models/tiny"), tmp_path / "file.yaml", {}) == str(model)
    with pytest.raises(UnsupportedError, match=r"spec\.model\.source: .*/none\.json is not a file"):
        model_flag(deployment(model__source="random://none.json"), tmp_path / "file.yaml", {})


def test_a_claim_is_a_volume(tmp_path: Path, model: Path) -> None:
    wanted = deployment(model__source="pvc://claim/tiny")
    assert model_directory(wanted, Path("file.yaml"), {"claim": tmp_path / "models"}) == model
    with pytest.raises(UnsupportedError, match=r"spec\.model\.source: needs --volume claim=PATH"):
        model_directory(wanted, Path("file.yaml"), {"other": tmp_path})
    with pytest.raises(StartError, match=r"--volume claim=.*: not a directory"):
        model_directory(wanted, Path("file.yaml"), {"claim": tmp_path / "nothing"})


def test_a_link_out_of_a_volume_is_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "tiny").symlink_to(model)
    wanted = deployment(model__source="pvc://claim/tiny")
    with pytest.raises(UnsupportedError, match="leads out of the volume claim"):
        model_directory(wanted, Path("file.yaml"), {"claim": tmp_path / "volume"})


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"spec\.model\.source: .*/nowhere is not a directory with a config\.json"
    ):
        model_directory(deployment(model__source="file://nowhere"), tmp_path / "file.yaml", {})


@pytest.mark.parametrize(
    "source", [f"hf://org/name@{'a' * 40}", "s3://bucket/path", f"oci://host/image@sha256:{'0' * 64}"]
)
def test_what_has_to_be_fetched_first_is_refused(source: str) -> None:
    with pytest.raises(UnsupportedError, match="is fetched by `baton up`, `baton batch` and on a cluster"):
        model_directory(deployment(model__source=source), Path("file.yaml"), {})


def test_devices_follow_the_manifest_unless_overridden() -> None:
    plain, gpu = deployment(), deployment(prefill__accelerator=GPU, decode__accelerator=GPU)
    assert devices(plain, None, 0) == {Role.PREFILL: Device.CPU, Role.DECODE: Device.CPU}
    assert devices(gpu, None, 1) == {Role.PREFILL: Device.CUDA, Role.DECODE: Device.CUDA}
    assert devices(gpu, Device.CPU, 0) == {Role.PREFILL: Device.CPU, Role.DECODE: Device.CPU}
    assert devices(plain, Device.CUDA, 1) == {Role.PREFILL: Device.CUDA, Role.DECODE: Device.CUDA}


def test_a_gpu_that_is_not_there_is_refused_by_field() -> None:
    with pytest.raises(UnsupportedError, match=r"spec\.decode\.accelerator: this machine has no nvidia\.com/gpu"):
        devices(deployment(decode__accelerator=GPU), None, 0)
    with pytest.raises(UnsupportedError, match=r"spec\.decode\.accelerator: this machine has no amd\.com/gpu"):
        devices(deployment(decode__accelerator={"resource": "amd.com/gpu"}), None, 1)
    with pytest.raises(StartError, match="--device cuda: this machine has no NVIDIA GPU"):
        devices(deployment(), Device.CUDA, 0)


def test_visible_gpus_are_counted(tmp_path: Path) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    assert gpu_ids({}, tmp_path) == ("0", "1")
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == ("1",)
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": "3, 1,3"}, tmp_path) == ("3", "1"), "in that order, each once"
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()
    assert gpu_ids({}, tmp_path / "none") == ()


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"--port {port}: 127\.0\.0\.1:{port} cannot be used: Address already"):
            reserve_port("127.0.0.1", port)


@pytest.mark.parametrize("shared", [False, True])
def test_a_held_port_is_the_gateways_as_often_as_it_starts_and_nobody_elses(shared: bool) -> None:
    """Others were given the port between the look at it and the gateway's start, or its next start."""
    with reserve_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            with bind("127.0.0.1", port, shared=shared) as gateway:
                gateway.listen()
                with pytest.raises(StartError, match="Address already in use"):
                    reserve_port("127.0.0.1", port)
        with pytest.raises(OSError, match="Address already in use"):
            _any_port_if_only(port)
    assert _any_port_if_only(port) == port


def _any_port_if_only(port: int) -> int:
    """Which port somebody gets who asks for any, where there is but this one."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
        except OSError:
            pytest.skip("before Linux 6.3 a socket cannot be told which ports there are")
        other.bind(("127.0.0.1", 0))
        return int(other.getsockname()[1])


def test_a_host_that_is_no_address_of_this_machine_is_refused() -> None:
    with pytest.raises(StartError, match="--host example: must be an IP address"):
        reserve_port("example", 0)
    with pytest.raises(StartError, match="cannot be used"):
        reserve_port("203.0.113.7", 0)
