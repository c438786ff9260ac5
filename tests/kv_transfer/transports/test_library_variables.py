"""The variables that the installed UCX, NIXL and verbs read: none that takes a file, a command, a module or a signal
can be set by a tenant, and none of them does anything in a worker. A version with another one fails here."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import pytest

from baton_control.spec.reserved_env import CLOSED_ENV, OPENED_BY_NAME, is_reserved
from baton_kv_transfer.transports.ucx.binding import CLOSED
from baton_operator.objects.allowed_env import ANY, SAFE_ENV, refusal
from baton_testing.kv_transfer.nixl import NEEDS_UCX
from baton_testing.kv_transfer.ucx_options import SAME_PACKAGES, libraries, ucx_options
from baton_testing.processes.child_process import run_to_end

pytestmark = NEEDS_UCX
options = functools.cache(ucx_options)
BOUNDED = re.compile(
    r"\[[\w|\-]+\](0 6)?|<(y\|n|yes\|no\|try(\|auto)?|on\|off\|auto)>"
    r"|(unsigned |floating point |positive floating point )?(integer|number|long)\b.*"
    r"|(time value|memory units|numbers range|bandwidth value|hex representation)\b.*"
    r"|comma-separated list of: (\[[\w|\-]+\]|numbers range.*|memory units.*)"
)
"""Syntaxes that are a number, a choice, or a list of them."""
JUDGED = {
    "NET_DEVICES", "SHM_DEVICES", "ACC_DEVICES", "SELF_DEVICES", "TLS", "PROTOS", "SOCKADDR_TLS_PRIORITY", "ALLOC_PRIO",
    "TOPO_PRIO", "DISTANCE_LAT", "DISTANCE_BW", "TCP_AF_PRIO", "RNDV_THRESH", "RNDV_FRAG_SIZE", "RNDV_FRAG_ALLOC_COUNT",
    "SELECT_DISTANCE_MD", "PROTO_INFO", "PROTO_OVERHEAD", "LOG_FILE_FILTER", "IB_DEVICE_SPECS", "IB_PCI_BW",
    "IB_SUBNET_PREFIX", "RC_MLX5_SRQ_TOPO",
}  # fmt: skip
"""UCX's variables with free text that only names devices, transports, allocators or parts of a log, and their
numbers."""
JUDGED_ENDINGS = ("_ROCE_SUBNETS", "_SEND_OVERHEAD", "_RECV_OVERHEAD")
DANGEROUS = {
    "UCX_CONFIG_DIR", "UCX_MODULE_DIR", "UCX_MODULES", "UCX_PLUGIN_PATH", "UCX_GDB_COMMAND", "UCX_HANDLE_ERRORS",
    "UCX_ERROR_SIGNALS", "UCX_ERROR_MAIL_TO", "UCX_DEBUG_SIGNO", "UCX_ASYNC_SIGNO", "UCX_LOG_FILE", "UCX_VFS_ENABLE",
    "UCX_VFS_SOCK_PATH", "UCX_MEMTRACK_DEST", "UCX_PROFILE_FILE", "UCX_PROFILE_MODE", "UCX_PROTO_INFO_DIR",
    "UCX_POSIX_DIR", "UCX_LOG_LEVEL_TRIGGER",
}  # fmt: skip
STEMS = re.compile(
    "DIR|FILE|PATH|CMD|COMMAND|PLUGIN|MODULE|CONF|LIB|DRIVER|DEST|SIGNAL|SIGNO|MAIL|EXEC|SCRIPT|HOOK|DUMP|SOCK|INJECT"
    "|PRELOAD|GDB|DEBUGGER"
)
CONSTANTS = re.compile(r"(CUDA_ERROR|CU|IBV_(EVENT|WC|WR|QPT)|UCT|UCS|UCP|GLIBC\w*)_")
"""Names of values and symbols, not of variables."""
HARMLESS = {
    "DIRECT_NIC", "GPU_DIRECT_RDMA", "INDIRECT_ATOMIC", "LRU_INDIRECT", "PROTO_INDIRECT_ID", "FILE_SEG", "SOCK_RAW",
    "RNDV_MEMTYPE_DIRECT_SIZE", "RDMAV_ALLOW_DISASSOC_DESTROY", "LID_PATH_BITS", "UCX_IB_LID_PATH_BITS", "NUM_PATHS",
    "PATH_MTU", "MULTI_PATH_RATIO", "ROCE_PATH_FACTOR", "SOCKADDR_AUX_TLS", "SOCKADDR_TLS_PRIORITY", "LOG_FILE_FILTER",
    "LOG_FILE_ROTATE", "LOG_FILE_SIZE", "CUDA_HOOK_MODE", "MMAP_HOOK_MODE", "UCX_MEM_CUDA_HOOK_MODE",
    "MODULE_LOG_LEVEL", "MODULE_UNLOAD_PREVENT_MODE",
}  # fmt: skip
"""Numbers, choices and constants of the shared objects whose names only look like files or modules."""


def test_every_option_of_ucx_with_free_text_is_reserved_or_was_judged() -> None:
    names = {option.name for option in options()}
    assert len(names) > 400, "the library was asked"
    unknown = {
        f"{option.name} ({option.syntax})"
        for option in options()
        if BOUNDED.fullmatch(option.syntax) is None and not is_reserved(option.name) and not is_judged(option.name)
    }
    assert not unknown, "judge them: reserve those that take a file, a command, a module, a signal or an address"
    assert DANGEROUS - {"UCX_CONFIG_DIR"} <= names
    assert {name for name in DANGEROUS if not is_reserved(name)} == set()


def is_judged(name: str) -> bool:
    return name.removeprefix("UCX_") in JUDGED or name.endswith(JUDGED_ENDINGS)


def test_no_list_of_an_installation_opens_a_reserved_variable_of_the_library() -> None:
    reserved = {option.name for option in options() if is_reserved(option.name)} | DANGEROUS
    for entries in (SAFE_ENV, ("UCX_", "NCCL_"), ("UCX_", "UCX_MODULE_", "UCX_GDB_"), (ANY,), tuple(reserved)):
        assert all(refusal(entries, name, "x") is not None for name in reserved)


def test_the_names_that_are_allowed_by_default_are_known_to_the_library_and_take_no_free_text() -> None:
    known = {option.name: option for option in options()}
    for name in (variable for variable in SAFE_ENV if variable.startswith("UCX_")):
        option = known.get(name) or next(
            (
                known[f"UCX_{family}_{ending}"]
                for family, ending in transports(name)
                if f"UCX_{family}_{ending}" in known
            ),
            None,
        )
        assert option is not None, f"{name} is no option of UCX"
        assert BOUNDED.fullmatch(option.syntax) is not None or is_judged(option.name), option


def transports(name: str) -> list[tuple[str, str]]:
    """Where the tables of transports have an option that is set for a family of them: UCX_RC_TIMEOUT."""
    family, _, ending = name.removeprefix("UCX_").partition("_")
    families = {"RC": ("RC_VERBS", "RC_MLX5"), "IB": ("RC_VERBS", "RC_MLX5", "UD_VERBS", "IB")}.get(family, ())
    return [(family, ending) for family in families]


def test_what_looks_like_a_file_or_a_module_in_the_libraries_is_reserved_or_was_judged() -> None:
    folder, word = libraries(), re.compile(rb"(?<![A-Za-z0-9_])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![A-Za-z0-9_])")
    patterns = ("libuc*.so*", "libibverbs*.so*", "libmlx5*.so*", "libcore-*.so*", "nixl/libplugin_UCX.so", "ucx/*.so*")
    names: set[str] = set()
    for path in (file for pattern in patterns for file in folder.glob(pattern)):
        names |= {match.decode() for match in word.findall(path.read_bytes())}
    named = {name for name in names if STEMS.search(name) and not CONSTANTS.match(name)}
    assert {"UCX_CONFIG_DIR", "IBV_DRIVERS", "RDMAV_DRIVERS", "SYSFS_PATH"} <= named
    assert {name for name in named if not is_reserved(name)} <= HARMLESS


def test_an_agent_loads_no_foreign_module_starts_no_debugger_and_takes_no_signal(tmp_path: Path) -> None:
    modules, ran = tmp_path / "modules", tmp_path / "ran"
    modules.mkdir()
    for name in ("libuct_cma.so.0.0.0", "libuct_ib.so.0.0.0"):
        shutil.copy(libraries() / "ucx" / name, modules)
    (tmp_path / "ucx.conf").write_text(f"UCX_MODULE_DIR={modules}\n")
    debugger = tmp_path / "debugger"
    debugger.write_text(f"#!/bin/sh\necho ran > {ran}\n")
    debugger.chmod(0o755)
    given = SAME_PACKAGES | {
        "UCX_CONFIG_DIR": str(tmp_path),
        "UCX_HANDLE_ERRORS": "debug",
        "UCX_GDB_COMMAND": str(debugger),
        "UCX_ERROR_SIGNALS": "SIGCHLD",
    }
    done = run_to_end(["-m", "baton_testing.kv_transfer.ucx_attacked"], 60.0, given)
    assert done.code == 0, done.stderr
    reported = json.loads(done.stdout)
    assert any(str(libraries() / "ucx") in path for path in reported["mapped"]), "the wheel's own modules are loaded"
    assert [path for path in reported["mapped"] if str(tmp_path) in path] == []
    assert not ran.exists()
    assert reported["hangups"] == 1, "SIGHUP is the process's own"
    assert reported["metadata"] > 0


def test_what_closes_ucx_is_the_same_in_pods_and_in_the_process() -> None:
    assert dict(CLOSED_ENV) == CLOSED
    assert all(is_reserved(name) for name in CLOSED)


@pytest.mark.parametrize("name", OPENED_BY_NAME)
def test_what_an_installation_may_open_by_name_is_opened_by_nothing_else(name: str) -> None:
    assert refusal((name,), name, "/mnt/x") is None
    for entries in ((ANY,), (f"{name.partition('_')[0]}_",), SAFE_ENV):
        assert refusal(entries, name, "/mnt/x") is not None
