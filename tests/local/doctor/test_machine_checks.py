"""What the doctor says of a machine: facts in, findings out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton_local.doctor.finding import DoctorFinding, State, as_json, as_text, exit_status
from baton_local.doctor.machine_checks import UNLIMITED, check_machine
from baton_local.doctor.machine_facts import Disk, MachineFacts, PciLink, Port, RdmaPort, TorchBuild
from baton_local.fleet.gpu_room import Gpu

GB = 10**9
GPU = Gpu("0", "GPU-a", 140 * GB, 143 * GB, "NVIDIA H200", "580.65")
DISK = Disk("/home/u", None, 100 * GB)
LAPTOP = MachineFacts(
    (3, 12, 1), {}, TorchBuild("2.13.0", None), has_driver=False, gpus=None, rdma=(), network={"eth0": 25_000},
    shm_bytes=8 * GB, memlock_bytes=64 << 10, open_files=65_536, is_clock_synchronised=True, resolves_localhost=True,
    resolves_hub=True, cpus=8, free_bytes=16 * GB, run_folder=DISK, cache=DISK, port=Port(8000, True, None),
)  # fmt: skip
NODE = replace(
    LAPTOP,
    packages={"triton": "3.7", "nixl-cu13": "1.5"},
    torch=TorchBuild("2.13.0", "13.0"),
    has_driver=True,
    gpus=(GPU,),
    pci=(PciLink("0", 16, 16),),
    rdma=(RdmaPort("mlx5_0/1", "ACTIVE", "400 Gb/sec (4X NDR)"),),
    rdma_is_usable=True,
    has_peer_memory=True,
    memlock_bytes=UNLIMITED,
)


def bad(facts: MachineFacts) -> list[DoctorFinding]:
    return [finding for finding in check_machine(facts) if finding.state is not State.OK]


@pytest.mark.parametrize("facts", [LAPTOP, NODE], ids=["laptop", "node"])
def test_a_machine_in_order_has_no_finding_and_exits_0(facts: MachineFacts) -> None:
    assert bad(facts) == []
    assert exit_status(check_machine(facts)) == 0


PLANTED: list[tuple[MachineFacts, dict[str, Any], str, State, str]] = [
    (LAPTOP, {"python": (3, 10, 2)}, "python", State.FAILED, "3.11"),
    (LAPTOP, {"torch": None}, "torch", State.FAILED, "pip install"),
    (LAPTOP, {"network": None}, "network", State.UNKNOWN, ""),
    (LAPTOP, {"rdma": None}, "rdma", State.UNKNOWN, ""),
    (LAPTOP, {"shm_bytes": 64 << 20}, "shm", State.WARNING, "/dev/shm"),
    (LAPTOP, {"shm_bytes": None}, "shm", State.UNKNOWN, ""),
    (LAPTOP, {"open_files": 1024}, "open files", State.WARNING, "ulimit"),
    (LAPTOP, {"open_files": None}, "open files", State.UNKNOWN, ""),
    (LAPTOP, {"free_bytes": GB}, "memory", State.WARNING, "stop"),
    (LAPTOP, {"free_bytes": None}, "memory", State.UNKNOWN, ""),
    (LAPTOP, {"cpu_waiting_share": 0.85}, "cpu", State.WARNING, "busy machine"),
    (LAPTOP, {"resolves_localhost": False}, "dns", State.FAILED, "/etc/hosts"),
    (LAPTOP, {"resolves_hub": False}, "dns", State.WARNING, "resolv.conf"),
    (LAPTOP, {"resolves_hub": None}, "dns", State.UNKNOWN, ""),
    (LAPTOP, {"is_clock_synchronised": False}, "clock", State.WARNING, "timedatectl"),
    (LAPTOP, {"is_clock_synchronised": None}, "clock", State.UNKNOWN, ""),
    (
        LAPTOP,
        {"run_folder": Disk("/tmp/baton-0", "belongs to another user", None)},
        "run folder",
        State.FAILED,
        "chmod",
    ),
    (LAPTOP, {"run_folder": Disk("/tmp/baton-0", None, 1000)}, "run folder", State.FAILED, "df -h"),
    (LAPTOP, {"run_folder": None}, "run folder", State.UNKNOWN, ""),
    (LAPTOP, {"cache": Disk("/c", "this user may not write to /c", None)}, "cache", State.FAILED, "--cache"),
    (LAPTOP, {"cache": Disk("/c", None, GB)}, "cache", State.WARNING, "--cache"),
    (LAPTOP, {"cache": None}, "cache", State.UNKNOWN, ""),
    (LAPTOP, {"port": Port(8000, False, None)}, "port", State.WARNING, "--port 0"),
    (LAPTOP, {"port": None}, "port", State.UNKNOWN, ""),
    (NODE, {"torch": TorchBuild("2.13.0", None)}, "torch", State.FAILED, "TORCH=cuda"),
    (NODE, {"gpus": None}, "gpu", State.UNKNOWN, ""),
    (NODE, {"gpus": ()}, "gpu", State.FAILED, "nvidia-smi"),
    (NODE, {"gpus": (replace(GPU, free_bytes=3 * GB),)}, "gpu", State.WARNING, "nvidia-smi"),
    (NODE, {"gpus": (replace(GPU, driver="550.1"),)}, "driver", State.FAILED, "580"),
    (NODE, {"pci": (PciLink("0", 4, 16),)}, "pcie", State.WARNING, "slot"),
    (NODE, {"packages": {"nixl-cu13": "1.5"}}, "triton", State.FAILED, "[gpu]"),
    (NODE, {"packages": {"triton": "3.7"}}, "ucx", State.WARNING, "[ucx]"),
    (NODE, {"rdma": (RdmaPort("mlx5_0/1", "DOWN", "10 Gb/sec"),)}, "rdma", State.WARNING, "ibv_devinfo"),
    (NODE, {"rdma_is_usable": False}, "rdma", State.FAILED, "/dev/infiniband"),
    (NODE, {"has_peer_memory": False}, "rdma", State.WARNING, "modprobe"),
    (NODE, {"memlock_bytes": 8 << 20}, "memlock", State.FAILED, "ulimit -l"),
    (NODE, {"memlock_bytes": None}, "memlock", State.UNKNOWN, ""),
]


@pytest.mark.parametrize(
    ("facts", "change", "check", "state", "fix"), PLANTED, ids=[f"{c}-{next(iter(f))}-{s}" for _, f, c, s, _ in PLANTED]
)
def test_each_planted_fault_is_the_one_finding_and_says_what_mends_it(
    facts: MachineFacts, change: dict[str, Any], check: str, state: State, fix: str
) -> None:
    [finding] = bad(replace(facts, **change))
    assert (finding.check, finding.state) == (check, state)
    assert fix in finding.fix
    assert bool(finding.fix) is (state is not State.UNKNOWN), "an unknown asks for nothing"
    assert exit_status([finding]) == (1 if state is State.FAILED else 0)


def test_facts_that_say_nothing_are_unknown_and_never_zero() -> None:
    silent = MachineFacts((3, 12, 1), {}, None, has_driver=True)
    findings = check_machine(silent)
    assert {f.check for f in findings if f.state is State.FAILED} == {"torch", "triton"}
    assert " 0" not in "".join(f.text for f in findings if f.state is State.UNKNOWN)


def test_a_port_of_a_running_deployment_is_in_order() -> None:
    assert bad(replace(LAPTOP, port=Port(8000, False, "default.chat"))) == []


def test_unknown_sizes_of_a_gpu_are_said_as_such() -> None:
    shared = replace(NODE, gpus=(replace(GPU, free_bytes=None, total_bytes=None),))
    assert bad(shared) == []
    assert "an unknown size free" in as_text(check_machine(shared))


def test_the_page_counts_findings_and_programs_get_the_same() -> None:
    findings = check_machine(replace(LAPTOP, torch=None, resolves_hub=False))
    text = as_text(findings)
    assert text.splitlines()[-1] == "11 ok, 1 warning, 1 failed"
    assert "→ pip install 'baton-serving[local]'" in text
    page = as_json(findings)
    assert page["counts"] == {"ok": 11, "warning": 1, "failed": 1, "unknown": 0}


def test_where_a_proxy_is_set_the_finding_is_about_its_name() -> None:
    """The hub's name counted as resolved, though only the proxy's had been looked up."""
    for is_found, text in ((True, "proxy.example has an address"), (False, "proxy.example has no address here")):
        facts = replace(LAPTOP, fetch_host="proxy.example", resolves_hub=is_found)
        [name] = [finding for finding in check_machine(facts) if finding.check == "dns"]
        assert name.text.startswith(text)
