"""Which transport a pair uses: what each side offers and what both then agree on. Pure, but for a look at the machine.

Both hellos name transports, best first; the pair uses the decode worker's first that the prefill worker names too, so
that both come to the same answer without another message.
"""

from __future__ import annotations

import enum
from pathlib import Path

from baton_kv_transfer.transports import tcp
from baton_kv_transfer.transports.ucx import binding as ucx
from baton_wire.errors import UnfitPairError

INFINIBAND = Path("/sys/class/infiniband")
_ACTIVE = "4: ACTIVE"


class TransportChoice(enum.StrEnum):
    """`spec.kvTransfer.transport`, and `--transport` of the workers."""

    AUTO = "auto"
    """UCX where it is installed and there is a network card that it is better with; TCP beside it."""
    TCP = "tcp"
    UCX = "ucx"


def offered(choice: TransportChoice, *, has_rdma: bool, has_ucx: bool) -> tuple[str, ...]:
    """What this worker names in its hello. Raises ValueError when UCX is asked for and not installed."""
    match choice:
        case TransportChoice.TCP:
            return (tcp.NAME,)
        case TransportChoice.UCX:
            if not has_ucx:
                raise ValueError("transport: ucx needs the extra `ucx` (NIXL), which is not installed; allowed: tcp")
            return (ucx.NAME,)
        case TransportChoice.AUTO:
            return (ucx.NAME, tcp.NAME) if has_ucx and has_rdma else (tcp.NAME,)


def offered_here(choice: TransportChoice) -> tuple[str, ...]:
    """`offered` on this machine."""
    return offered(choice, has_rdma=has_rdma(), has_ucx=ucx.is_installed())


def agreed(decode: tuple[str, ...], prefill: tuple[str, ...]) -> str:
    """The transport of a pair. Raises UnfitPairError when they have none in common."""
    for name in decode:
        if name in prefill:
            return name
    raise UnfitPairError(f"transports: {list(prefill)} at the prefill worker, {list(decode)} at the decode worker")


def has_rdma(root: Path = INFINIBAND) -> bool:
    """Whether a port of an InfiniBand or RoCE card is active."""
    for state in root.glob("*/ports/*/state"):
        try:
            if state.read_text(encoding="ascii").startswith(_ACTIVE):
                return True
        except (OSError, UnicodeDecodeError):
            continue
    return False
