"""The choice of streams: one per kind and namespace, or one per kind for all namespaces together.

Each watch is a connection, and Python's TLS keeps a buffer for each, of 256 KiB by default. So for two or more
namespaces, one stream per kind over the whole cluster serves all of them, if the operator may list and watch there;
objects of other namespaces are dropped as they come. Without that right the namespaces are watched one by one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource as process_limits
from asyncio import sslproto

from baton_control.errors import OperatorError
from baton_operator.kube.backoff import Backoff
from baton_operator.kube.kinds import OPTIONAL, WATCHED
from baton_operator.kube.kube_api import Forbidden, KubeApi, KubeError, NotFound
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_operator.kube.reach import Scope

log = logging.getLogger(__name__)
LEAST = 4
"""The number of namespaces that is always allowed, whatever the limit on open files."""
KINDS = len((*WATCHED, *OPTIONAL))
SPARE_FILES = 512
"""Open files for everything else: calls, links of gateways, mounted files."""
TLS_BUFFER = 64 * 1024
"""Four TLS records, instead of 16."""
_NOTHING = f"{DEPLOYMENT_LABEL}=no_body"
"""A selector that selects nothing, because no name has an underscore."""


class TooManyNamespaces(OperatorError):
    """There are more namespaces than connections allow for."""

    def __init__(self, namespaces: int, most: int) -> None:
        super().__init__(
            f"--namespaces: {namespaces} are not allowed: must be at most {most}, with {KINDS} watches in each and this"
            " process's limit on open files; with the right to list and watch cluster-wide (watch.sharedStreams in the"
            " chart) any number is allowed"
        )


def shrink_read_buffers() -> None:
    """Limit the TLS read buffer of each later connection to TLS_BUFFER bytes. asyncio has no argument for it; its
    streams take the size from their class."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER


def most_namespaces(open_files: int) -> int:
    """The most namespaces that can be watched one by one with `open_files` open files."""
    return max(LEAST, (open_files - SPARE_FILES) // KINDS)


def raise_open_files() -> int:
    """Raise this process's limit on open files as far as allowed; returns the limit."""
    soft, hard = process_limits.getrlimit(process_limits.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == process_limits.RLIM_INFINITY else hard
    if soft == process_limits.RLIM_INFINITY or soft >= wanted:
        return 1 << 16 if soft == process_limits.RLIM_INFINITY else soft
    process_limits.setrlimit(process_limits.RLIMIT_NOFILE, (wanted, hard))
    return wanted


async def scopes_for(api: KubeApi, namespaces: tuple[str, ...] | None, open_files: int) -> tuple[Scope, ...]:
    """The scopes of the streams to open; waits for a server that does not answer. Raises TooManyNamespaces."""
    if namespaces is None:
        return (None,)
    if len(namespaces) == 1:
        return namespaces
    if await _may_share(api):
        log.info("%d namespaces are watched through cluster-wide streams", len(namespaces))
        return (None,)
    most = most_namespaces(open_files)
    if len(namespaces) > most:
        raise TooManyNamespaces(len(namespaces), most)
    return namespaces


async def _may_share(api: KubeApi) -> bool:
    """True if all kinds that have to be watched may be listed cluster-wide. The chart grants lists and watches
    together."""
    backoff = Backoff(random.Random())
    for resource in WATCHED:
        while True:
            try:
                await api.list(resource, None, _NOTHING)
            except Forbidden as error:
                log.info("namespaces are watched one by one: %s", error)
                return False
            except NotFound:
                pass  # its definition comes later
            except KubeError as error:
                log.warning("%s: %s", resource.plural, error)
                await asyncio.sleep(backoff.after(error))
                continue
            break
    return True
