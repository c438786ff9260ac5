"""The facts about a machine that the doctor judges. A fact that could not be read is None."""

from __future__ import annotations

from dataclasses import dataclass

from baton_local.fleet.gpu_room import Gpu

HUB = "huggingface.co"


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed PyTorch, by its files: importing it takes seconds."""

    version: str
    cuda: str | None
    """Version of CUDA that it was built for; None: a build for CPUs."""


@dataclass(frozen=True, slots=True)
class PciLink:
    """The PCIe lanes of a GPU."""

    gpu: str
    width: int
    most: int


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device."""

    name: str
    """As `mlx5_0/1`."""
    state: str
    rate: str


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder that Baton writes to."""

    path: str
    problem: str | None
    """Why Baton cannot use it; None: it can."""
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Port:
    """The port that `baton up` takes."""

    number: int
    is_free: bool
    used_by: str | None
    """The running deployment that has it; None: none has."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts about this machine."""

    python: tuple[int, ...]
    packages: dict[str, str]
    """Versions of installed packages by name; missing: not installed."""
    torch: TorchBuild | None
    """None: not installed."""
    has_driver: bool
    """True if the kernel has NVIDIA's driver."""
    gpus: tuple[Gpu, ...] | None = None
    pci: tuple[PciLink, ...] | None = None
    rdma: tuple[RdmaPort, ...] | None = None
    rdma_is_usable: bool | None = None
    """True if this user may open the devices."""
    has_peer_memory: bool | None = None
    """True if the network card can read the GPU's memory."""
    network: dict[str, int | None] | None = None
    """Mbit/s of each interface that is up; None: it does not say."""
    shm_bytes: int | None = None
    memlock_bytes: int | None = None
    """The limit of locked memory; -1: none."""
    open_files: int | None = None
    is_clock_synchronised: bool | None = None
    resolves_localhost: bool | None = None
    fetch_host: str = HUB
    """The host whose address a fetch from the hub needs: a proxy's, where one is set."""
    resolves_hub: bool | None = None
    """True if `fetch_host` has an address."""
    cpus: int | None = None
    cpu_waiting_share: float | None = None
    """The share of the last minute in which some process waited for a CPU; None: the kernel does not say."""
    free_bytes: int | None = None
    run_folder: Disk | None = None
    cache: Disk | None = None
    port: Port | None = None
