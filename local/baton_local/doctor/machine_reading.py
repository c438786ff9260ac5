"""The readers of a machine's facts: files of the kernel, `nvidia-smi`, limits, names. None of them changes anything."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import ipaddress
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton_local.doctor.deadline import Reader, read_within
from baton_local.doctor.machine_facts import HUB, Disk, MachineFacts, PciLink, Port, RdmaPort, TorchBuild
from baton_local.errors import StartError
from baton_local.fetching.model_cache import cache_folder
from baton_local.fleet.gpu_room import SMI, query_gpus, query_nvidia_smi
from baton_local.fleet.host import GPU_LIST
from baton_local.fleet.port_holder import deployment_at
from baton_local.fleet.run_dir import base_directory
from baton_wire.listening.sockets import bind
from baton_worker.building.memory_limit import free_bytes

PACKAGES = ("triton", "nixl-cu13")
LOOPBACK = "127.0.0.1"
PRESSURE_FILES = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))
"""Files with the wait for CPUs: the container's, then the machine's."""
TIMEX_BYTES = 512
"""More than the kernel's `struct timex` has."""
TIME_ERROR = 5
"""The answer of adjtimex(2) for a clock that nothing synchronises."""
_PCI = ("index", "pcie.link.width.current", "pcie.link.width.max")
_CUDA = re.compile(r"^cuda\b[^=\n]*= *(?:'([\d.]+)'|None)", re.MULTILINE)


def read_machine(port: int, limit_s: float, environment: Mapping[str, str]) -> MachineFacts:
    """The facts of this machine, as far as they can be read within the limit. `port`: the one that a gateway takes."""
    fetch_host = _fetch_host(environment)
    readers: dict[str, Reader] = {
        "rdma": partial(read_rdma, Path("/sys/class/infiniband")),
        "rdma_is_usable": partial(may_open_rdma, Path("/dev/infiniband")),
        "has_peer_memory": Path("/sys/module/nvidia_peermem").is_dir,
        "network": partial(read_network, Path("/sys/class/net")),
        "shm_bytes": partial(_free, Path("/dev/shm")),
        "memlock_bytes": lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "open_files": lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "is_clock_synchronised": read_clock,
        "resolves_localhost": resolves_localhost,
        "resolves_hub": partial(has_address, fetch_host),
        "cpus": lambda: len(os.sched_getaffinity(0)),
        "cpu_waiting_share": partial(read_cpu_pressure, PRESSURE_FILES),
        "free_bytes": partial(free_bytes, "cpu"),
        "run_folder": _run_folder,
        "cache": partial(read_folder, cache_folder(environment)),
        "port": partial(read_port, port),
    }
    has_driver = GPU_LIST.is_dir()
    if has_driver and shutil.which(SMI) is not None:
        readers |= {"gpus": query_gpus, "pci": _read_pci}
    facts = read_within(readers, limit_s)
    known: Any = facts  # each reader returns the type of its field
    return replace(
        MachineFacts(sys.version_info[:3], _packages(), read_torch(), has_driver, fetch_host=fetch_host), **known
    )


def read_cpu_pressure(files: Sequence[Path]) -> float | None:
    """The share of the last minute in which some process waited for a CPU, by the first file that there is; None: there
    is none."""
    for file in files:
        if not file.is_file():
            continue
        match = re.search(r"^some .*\bavg60=([0-9.]+)", file.read_text(), re.MULTILINE)
        return None if match is None else float(match[1]) / 100
    return None


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def read_torch() -> TorchBuild | None:
    """The installed PyTorch, without importing it."""
    try:
        version, spec = metadata.version("torch"), importlib.util.find_spec("torch")
    except metadata.PackageNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = _CUDA.search(text)
    return TorchBuild(version, None if match is None else match[1])


def _read_pci() -> tuple[PciLink, ...]:
    links = []
    for line in query_nvidia_smi(_PCI).splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(_PCI) and parts[1].isdecimal() and parts[2].isdecimal():
            links.append(PciLink(parts[0], int(parts[1]), int(parts[2])))
    return tuple(links)


def read_rdma(folder: Path) -> tuple[RdmaPort, ...]:
    """The ports of the RDMA devices; none where the kernel has no such devices."""
    if not folder.is_dir():
        return ()
    ports = []
    for port in sorted(folder.glob("*/ports/*")):
        state = (port / "state").read_text(encoding="ascii").strip().partition(": ")[2]
        rate = (port / "rate").read_text(encoding="ascii").strip()
        ports.append(RdmaPort(f"{port.parent.parent.name}/{port.name}", state, rate))
    return tuple(ports)


def may_open_rdma(folder: Path) -> bool | None:
    """True if this user may open every device; None: there is none."""
    devices = list(folder.glob("uverbs*")) if folder.is_dir() else []
    return all(os.access(device, os.R_OK | os.W_OK) for device in devices) if devices else None


def read_network(folder: Path) -> dict[str, int | None]:
    """The Mbit/s of each interface with a device that is up; None where it does not say."""
    speeds: dict[str, int | None] = {}
    for interface in sorted(folder.iterdir()):
        with contextlib.suppress(OSError, ValueError):
            state = (interface / "operstate").read_text(encoding="ascii").strip()
            if not (interface / "device").exists() or state not in ("up", "unknown"):
                continue
            speeds[interface.name] = None
            speed = int((interface / "speed").read_text(encoding="ascii"))
            speeds[interface.name] = speed if speed > 0 else None
    return speeds


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


def read_clock() -> bool | None:
    """True if something keeps the machine's clock; None: the kernel does not say."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except AttributeError:
        return None
    return None if state < 0 else state != TIME_ERROR


def resolves_localhost() -> bool:
    """True if `localhost` is a loopback address and nothing else."""
    try:
        entries = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in entries)


def _fetch_host(environment: Mapping[str, str]) -> str:
    """The host whose address a fetch from the hub needs: a proxy's, where one is set."""
    proxy = environment.get("HTTPS_PROXY") or environment.get("https_proxy") or ""
    return urlsplit(proxy if "://" in proxy else f"//{proxy}").hostname or HUB


def has_address(host: str) -> bool:
    """True if the host has an address; the name server may take long."""
    try:
        return bool(socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM))
    except socket.gaierror:
        return False


def _run_folder() -> Disk:
    try:
        folder = base_directory()
    except StartError as error:
        path, _, problem = str(error).partition(" ")
        return Disk(path, problem, None)
    return read_folder(folder)


def read_folder(folder: Path) -> Disk:
    """A folder that Baton writes to, or would make: its nearest existing parent counts."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Disk(str(folder), f"{there} is no folder", None)
    if not os.access(there, os.W_OK | os.X_OK):
        return Disk(str(folder), f"this user may not write to {there}", None)
    return Disk(str(folder), None, _free(there))


def read_port(number: int) -> Port:
    """The port on loopback, and the running deployment that has it."""
    try:
        bind(LOOPBACK, number).close()
    except OSError:
        return Port(number, False, deployment_at(number))
    return Port(number, True, None)
