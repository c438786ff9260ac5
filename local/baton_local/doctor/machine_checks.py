"""The checks of a machine. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from baton_local.doctor.finding import DoctorFinding, failed, ok, unknown, warning
from baton_local.doctor.machine_facts import Disk, MachineFacts
from baton_local.text_table import gigabytes

LEAST_PYTHON = (3, 11)
LEAST_DRIVER = {12: 525, 13: 580}
"""The oldest driver for each major version of CUDA, by NVIDIA's table."""
LEAST_SHM = 1 << 30
LEAST_MEMLOCK = 1 << 30
LEAST_OPEN_FILES = 4_096
LEAST_RUN_BYTES = 1 << 30
LEAST_CACHE_BYTES = 20 << 30
LEAST_MEMORY = 2 << 30
BUSY_SHARE = 0.5
"""A GPU of which less than this part is free is used by something else."""
MOST_CPU_WAITING = 0.5
"""A larger share of the time in which some process waits for a CPU makes latencies long."""
UNLIMITED = -1
INSTALL = "pip install 'baton-serving[{}]'"


def check_machine(facts: MachineFacts) -> list[DoctorFinding]:
    """All findings, in the order in which a request needs the things."""
    return [
        _python(facts),
        _torch(facts),
        *_gpu(facts),
        *_rdma(facts),
        _network(facts),
        _shared_memory(facts),
        _open_files(facts),
        _memory(facts),
        *_cpu(facts),
        *_names(facts),
        _clock(facts),
        _run_folder(facts.run_folder),
        _cache(facts.cache),
        _port(facts),
    ]


def _python(facts: MachineFacts) -> DoctorFinding:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < LEAST_PYTHON:
        return failed(
            "python", f"{version} is too old", "install Python 3.11 or newer, and PYTHON=python3.11 make install"
        )
    return ok("python", version)


def _torch(facts: MachineFacts) -> DoctorFinding:
    if facts.torch is None:
        return failed("torch", "PyTorch is not installed", INSTALL.format("local"))
    build = "for CPUs" if facts.torch.cuda is None else f"for CUDA {facts.torch.cuda}"
    text = f"{facts.torch.version}, {build}"
    if facts.has_driver and facts.torch.cuda is None:
        return failed("torch", f"{text}, but this machine has an NVIDIA driver", "TORCH=cuda make install-user")
    return ok("torch", text)


def _gpu(facts: MachineFacts) -> Iterator[DoctorFinding]:
    if not facts.has_driver:
        yield ok("gpu", "no NVIDIA driver: workers compute on the CPU")
        return
    if facts.gpus is None:
        yield unknown("gpu", "nvidia-smi is missing, or did not answer in time")
    elif not facts.gpus:
        yield failed("gpu", "there is a driver, and nvidia-smi lists no GPU", "nvidia-smi")
    for gpu in facts.gpus or ():
        yield ok("gpu", f"{gpu.index}: {gpu.name}, driver {gpu.driver}, {_size(gpu.free_bytes)} free")
        if gpu.free_bytes is not None and gpu.total_bytes and gpu.free_bytes < BUSY_SHARE * gpu.total_bytes:
            text = f"{gpu.index}: {gigabytes(gpu.free_bytes)} of {gigabytes(gpu.total_bytes)} are free"
            yield warning("gpu", text, "nvidia-smi, and stop what else uses the GPU")
    yield from _driver(facts)
    for link in facts.pci or ():
        if link.width < link.most:
            text = f"GPU {link.gpu} has {link.width} of {link.most} PCIe lanes"
            yield warning("pcie", text, "nvidia-smi -q -d PERFORMANCE; reseat the card, or move it to another slot")
    if "triton" in facts.packages:
        yield ok("triton", facts.packages["triton"])
    else:
        yield failed("triton", "not installed: workers on GPUs need it", INSTALL.format("gpu"))


def _driver(facts: MachineFacts) -> Iterator[DoctorFinding]:
    cuda = None if facts.torch is None else facts.torch.cuda
    least = None if cuda is None else LEAST_DRIVER.get(_leading(cuda))
    for driver in sorted({gpu.driver for gpu in facts.gpus or ()}):
        if least is not None and 0 < _leading(driver) < least:
            text = f"{driver} is too old for PyTorch's CUDA {cuda}, which needs {least}"
            yield failed("driver", text, f"install NVIDIA's driver {least} or newer, or a PyTorch for an older CUDA")


def _leading(version: str) -> int:
    """The first number of a version; 0: there is none."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _rdma(facts: MachineFacts) -> Iterator[DoctorFinding]:
    if facts.rdma is None:
        yield unknown("rdma", "the devices could not be listed")
        return
    if not facts.rdma:
        yield ok("rdma", "no device: KV goes between machines over TCP")
        return
    for port in facts.rdma:
        if "ACTIVE" in port.state.upper():
            yield ok("rdma", f"{port.name}: {port.rate}")
        else:
            yield warning("rdma", f"{port.name} is {port.state.lower()}", "ibv_devinfo; ip link set DEVICE up")
    if facts.rdma_is_usable is False:
        fix = "run with --device=/dev/infiniband in a container, or chmod a+rw /dev/infiniband/uverbs*"
        yield failed("rdma", "this user may not open /dev/infiniband/uverbs*", fix)
    if "nixl-cu13" not in facts.packages:
        yield warning("ucx", "not installed: KV goes over TCP in spite of the devices", INSTALL.format("ucx"))
    else:
        yield ok("ucx", f"nixl-cu13 {facts.packages['nixl-cu13']}")
    if facts.has_driver and facts.has_peer_memory is False:
        text = "nvidia_peermem is not loaded: without DMA-BUF, KV passes through the host's memory"
        yield warning("rdma", text, "modprobe nvidia_peermem")
    yield _locked_memory(facts.memlock_bytes)


def _locked_memory(limit: int | None) -> DoctorFinding:
    if limit is None:
        return unknown("memlock", "the limit of locked memory could not be read")
    if limit != UNLIMITED and limit < LEAST_MEMLOCK:
        fix = "ulimit -l unlimited (memlock in /etc/security/limits.conf, --ulimit memlock=-1 for a container)"
        return failed("memlock", f"{gigabytes(limit)} of memory may be locked: RDMA cannot register a KV pool", fix)
    return ok("memlock", "unlimited" if limit == UNLIMITED else gigabytes(limit))


def _network(facts: MachineFacts) -> DoctorFinding:
    if facts.network is None:
        return unknown("network", "the interfaces could not be listed")
    if not facts.network:
        return ok("network", "no network card: this machine alone")
    names = [name if speed is None else f"{name} {speed / 1000:g} Gbit/s" for name, speed in facts.network.items()]
    return ok("network", ", ".join(names))


def _shared_memory(facts: MachineFacts) -> DoctorFinding:
    if facts.shm_bytes is None:
        return unknown("shm", "/dev/shm could not be read")
    text = f"{gigabytes(facts.shm_bytes)} free in /dev/shm"
    if facts.shm_bytes < LEAST_SHM:
        fix = "mount -o remount,size=8G /dev/shm (--shm-size=8g for a container, sharedMemory in an LLMDeployment)"
        return warning("shm", f"{text}: UCX falls back to slower lanes between workers of one machine", fix)
    return ok("shm", text)


def _open_files(facts: MachineFacts) -> DoctorFinding:
    if facts.open_files is None:
        return unknown("open files", "the limit could not be read")
    if 0 <= facts.open_files < LEAST_OPEN_FILES:
        text = f"a process may open {facts.open_files}: the gateway accepts fewer connections"
        return warning("open files", text, "ulimit -Hn 65536 (nofile in /etc/security/limits.conf)")
    return ok("open files", "unlimited" if facts.open_files == UNLIMITED else f"{facts.open_files:,}")


def _memory(facts: MachineFacts) -> DoctorFinding:
    if facts.free_bytes is None:
        return unknown("memory", "the free memory could not be read")
    text = f"{gigabytes(facts.free_bytes)} free, {facts.cpus or 'an unknown number of'} CPUs"
    if facts.free_bytes < LEAST_MEMORY:
        return warning("memory", text, "stop what else runs, or raise the limit of this container")
    return ok("memory", text)


def _cpu(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The waits for a CPU; nothing where the kernel does not report them."""
    if facts.cpu_waiting_share is None:
        return
    text = f"processes waited for a CPU in {facts.cpu_waiting_share:.0%} of the last minute"
    if facts.cpu_waiting_share > MOST_CPU_WAITING:
        fix = "see what else computes here (`top`): latencies measured now are those of a busy machine"
        yield warning("cpu", text, fix)
    else:
        yield ok("cpu", text)


def _names(facts: MachineFacts) -> Iterator[DoctorFinding]:
    if facts.resolves_localhost is False:
        fix = "echo '127.0.0.1 localhost' >> /etc/hosts"
        yield failed("dns", "localhost is no loopback address", fix)
    if facts.resolves_hub is None:
        yield unknown("dns", "no name server answered in time: hf:// models may not be fetched")
    elif facts.resolves_hub:
        yield ok("dns", f"{facts.fetch_host} has an address")
    else:
        fix = "check /etc/resolv.conf, or set HTTPS_PROXY, or serve a model from a folder: baton up FOLDER"
        yield warning("dns", f"{facts.fetch_host} has no address here: hf:// models cannot be fetched", fix)


def _clock(facts: MachineFacts) -> DoctorFinding:
    if facts.is_clock_synchronised is None:
        return unknown("clock", "the kernel does not say whether the clock is synchronised")
    if not facts.is_clock_synchronised:
        text = "not synchronised: times in logs of several machines cannot be compared, and tokens may seem expired"
        return warning("clock", text, "timedatectl set-ntp true")
    return ok("clock", "synchronised")


def _run_folder(disk: Disk | None) -> DoctorFinding:
    if disk is None:
        return unknown("run folder", "it could not be read in time")
    if disk.problem is not None:
        fix = f"chmod 700 {disk.path}, or set XDG_RUNTIME_DIR to a folder of your own"
        return failed("run folder", f"{disk.path}: {disk.problem}", fix)
    text = f"{disk.path}, {_size(disk.free_bytes)} free"
    if disk.free_bytes is not None and disk.free_bytes < LEAST_RUN_BYTES:
        return failed("run folder", f"{text}: logs need more", f"df -h {disk.path}, and remove what is not needed")
    return ok("run folder", text)


def _cache(disk: Disk | None) -> DoctorFinding:
    if disk is None:
        return unknown("cache", "it could not be read in time")
    if disk.problem is not None:
        fix = "baton up --cache FOLDER, or set XDG_CACHE_HOME to a folder of your own"
        return failed("cache", f"{disk.path}: {disk.problem}", fix)
    text = f"{disk.path}, {_size(disk.free_bytes)} free"
    if disk.free_bytes is not None and disk.free_bytes < LEAST_CACHE_BYTES:
        fix = "baton up --cache FOLDER on a larger disk, or --cache-size to evict models earlier"
        return warning("cache", f"{text}: a model of 8B parameters takes 16 GB", fix)
    return ok("cache", text)


def _port(facts: MachineFacts) -> DoctorFinding:
    port = facts.port
    if port is None:
        return unknown("port", "the default port could not be tried")
    if port.used_by is not None:
        return ok("port", f"{port.number} is used by {port.used_by}, which runs")
    if not port.is_free:
        return warning("port", f"{port.number} is taken", f"baton up --port 0, or ss -ltnp 'sport = :{port.number}'")
    return ok("port", f"{port.number} is free")


def _size(size: int | None) -> str:
    return "an unknown size" if size is None else gigabytes(size)
