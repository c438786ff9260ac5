"""The transport of a pair: what each side offers and what both then agree on.

This file and the contract in pyproject.toml are all that names a transport outside its own file or room.

Both hellos name transports, best first; the pair uses the decode worker's first that the prefill worker names too, so
that both come to the same answer without another message.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from baton_kv_transfer.transports.seam import Transport
from baton_kv_transfer.transports.tcp import TCP
from baton_kv_transfer.transports.ucx.sender import UCX
from baton_wire.errors import UnfitPairError

TABLE = (UCX, TCP)
"""Best first. A new transport is a room next to this file, a row here and a choice below."""


class TransportChoice(enum.StrEnum):
    """`spec.kvTransfer.transport`, and `--transport` of the workers."""

    AUTO = "auto"
    """UCX where it is installed and a network card is present that it is better with; TCP too."""
    TCP = "tcp"
    UCX = "ucx"


def offered(choice: TransportChoice, table: Sequence[Transport] = TABLE) -> tuple[Transport, ...]:
    """Transports that this worker names in its hello, best first. Raises ValueError when the chosen one is not
    installed."""
    if choice is TransportChoice.AUTO:
        return tuple(row for row in table if row.is_installed() and row.suits())
    (chosen,) = (row for row in table if row.name == choice)
    if not chosen.is_installed():
        allowed = ", ".join(row.name for row in table if row.is_installed())
        raise ValueError(f"transport: {chosen.name} needs {chosen.needs}, which is not installed; allowed: {allowed}")
    return (chosen,)


def agreed(decode: tuple[str, ...], prefill: tuple[str, ...]) -> str:
    """The transport of a pair. Raises UnfitPairError when they have none in common."""
    for name in decode:
        if name in prefill:
            return name
    raise UnfitPairError(f"transports: {list(prefill)} at the prefill worker, {list(decode)} at the decode worker")
