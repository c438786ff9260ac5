"""The environment variables that authors of LLMDeployments may set in workers, by name and by value.

The defaults choose the network card and the transport for KV and activations, and their numeric settings. Each name is
listed because of its effect in the library. None takes a file, an address, a command or a plug-in, and no value may
look like one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from baton_control.errors import FieldProblem, shown
from baton_control.spec.reserved_env import OPENED_BY_NAME, is_reserved

_UCX: Final = (
    "TLS", "NET_DEVICES", "MAX_RNDV_RAILS", "MAX_EAGER_RAILS", "MAX_RMA_RAILS", "RNDV_THRESH", "RNDV_SCHEME",
    "RNDV_FRAG_SIZE", "ZCOPY_THRESH", "BCOPY_THRESH", "KEEPALIVE_INTERVAL", "MEMTYPE_CACHE", "CM_USE_ALL_DEVICES",
    "IB_GID_INDEX", "IB_TRAFFIC_CLASS", "IB_SL", "IB_PKEY", "IB_NUM_PATHS", "IB_PATH_MTU", "IB_GPU_DIRECT_RDMA",
    "IB_PCI_RELAXED_ORDERING", "IB_PREFER_NEAREST_DEVICE", "IB_ROCE_REACHABILITY_MODE", "RC_TIMEOUT", "RC_RETRY_COUNT",
    "RC_RNR_TIMEOUT", "RC_RNR_RETRY_COUNT", "RC_PATH_MTU", "RC_MAX_RD_ATOMIC", "TCP_AF_PRIO", "TCP_PORT_RANGE",
    "TCP_SNDBUF", "TCP_RCVBUF", "TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT",
)  # fmt: skip
_NCCL: Final = (
    "DEBUG", "DEBUG_SUBSYS", "SOCKET_IFNAME", "SOCKET_FAMILY", "SOCKET_NTHREADS", "NSOCKS_PERTHREAD", "IB_DISABLE",
    "IB_HCA", "IB_GID_INDEX", "IB_ADDR_FAMILY", "IB_TC", "IB_SL", "IB_TIMEOUT", "IB_RETRY_CNT", "IB_QPS_PER_CONNECTION",
    "IB_PCI_RELAXED_ORDERING", "IB_ADAPTIVE_ROUTING", "NET_GDR_LEVEL", "P2P_LEVEL", "P2P_DISABLE", "SHM_DISABLE",
    "CROSS_NIC", "BUFFSIZE", "ALGO", "PROTO",
)  # fmt: skip
SAFE_ENV: Final = (*(f"UCX_{name}" for name in _UCX), *(f"NCCL_{name}" for name in _NCCL))
"""Names, never beginnings of names."""
ANY: Final = "*"
MOST_NAMED = 8
"""Most entries that a refusal names."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:;=^*+\[\]-]*")
"""Allows names of devices and transports, numbers, and lists of both. No path, `file:/…`, `@…`, `%…` or blank."""


def refusal(entries: Sequence[str], name: str, value: str) -> FieldProblem | None:
    """Why an installation with this list of `entries` refuses a variable, by its field; None: it may be set.

    An entry that covers many names (`*`, or a prefix with a final `_`) never allows a reserved name. A prefix allows
    only the names of SAFE_ENV that begin with it, because the next version of a library may add others.
    """
    if is_reserved(name):
        return FieldProblem("name", f"{shown(name)} is not allowed: it is reserved")
    begins = name in SAFE_ENV and any(name.startswith(entry) for entry in entries if entry.endswith("_"))
    if not (name in entries or begins or (ANY in entries and name not in OPENED_BY_NAME)):
        allowed = ", ".join(entries[:MOST_NAMED]) or "none"
        more = f" and {len(entries) - MOST_NAMED} more" if len(entries) > MOST_NAMED else ""
        message = f"{shown(name)} is not allowed by this installation (podPolicy.env): {allowed}{more}"
        return FieldProblem("name", message)
    if name in SAFE_ENV and _PLAIN.fullmatch(value) is None:
        message = f"{shown(value)} is not allowed for {name}: must be letters, digits and any of _.,:;=^*+[]-"
        return FieldProblem("value", message)
    return None


def idle_entries(entries: Sequence[str]) -> tuple[str, ...]:
    """Entries that allow nothing: prefixes of no name in SAFE_ENV, and reserved names."""
    return tuple(
        entry
        for entry in entries
        if is_reserved(entry) or (entry.endswith("_") and not any(name.startswith(entry) for name in SAFE_ENV))
    )
