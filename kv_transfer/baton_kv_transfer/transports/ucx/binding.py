"""The binding to UCX, through NIXL: one agent with its memory, its peers and its writes. No other room imports it.

What was measured and shapes this file (docs/decisions/ucx-through-nixl.md): an agent's progress thread spins on a core
unless it is given a pause, with one it sleeps until its sockets have something; metadata that does not parse spoils the
peer's name for good; a handle that was released must never be looked at again; a posted write cannot be taken back.
Every object here belongs to one thread, which is the business of `thread`.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy

from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.ucx.lanes import LaneLog
from baton_wire.errors import TransferError

log = logging.getLogger(__name__)

BACKEND = "UCX"
PROGRESS_PAUSE_US = 20_000
"""Longest sleep of the progress thread; arriving data wakes it at once. Zero would spin."""
PACKAGE = "nixl_cu13"
BATCHED = "NIXL_UCX_SGL_ENABLE"
CLOSED = {"UCX_CONFIG_DIR": "/nonexistent", "UCX_DEBUG_SIGNO": "0", "UCX_HANDLE_ERRORS": "none"}
"""Set before UCX is loaded, however the process was started: it reads no settings from a file, which can name modules
to load, starts no debugger, and leaves SIGHUP to the process. Also in `baton_control.spec.reserved_env`."""

T = TypeVar("T")


class UcxError(TransferError):
    """UCX or NIXL refused; the message is theirs."""


class WriteState(enum.Enum):
    PENDING = enum.auto()
    DONE = enum.auto()
    """All bytes have reached the peer."""
    BROKEN = enum.auto()
    """The connection broke: parts may have been written, parts may still be on their way."""


Piece = tuple[int, int, int]
"""Source address, target address, length."""


def host_memory(view: memoryview) -> MemoryRange:
    """The range of a contiguous view's bytes. They must be kept alive by the caller."""
    if not view.nbytes:
        return MemoryRange(0, 0)
    return MemoryRange(int(numpy.frombuffer(view, numpy.uint8).ctypes.data), view.nbytes)


def is_installed() -> bool:
    """True if the binding is installed (extra `ucx`); nothing is loaded."""
    return importlib.util.find_spec(PACKAGE) is not None


@contextmanager
def _setting(name: str, value: str) -> Iterator[None]:
    """Set a variable that NIXL reads when a backend is made; a value that is set already stays."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def load() -> None:
    """Look for what UCX can use here, once for all agents of this process: a second where there is a GPU, and 0.02 s
    for each agent afterwards. Raises UcxError.
    """
    UcxAgent(f"load-{uuid.uuid4().hex}", progress=False)


class UcxAgent:
    """One UCX endpoint of this process under a name that no other process ever has. Raises UcxError throughout."""

    def __init__(self, name: str, *, progress: bool, batched: bool = False) -> None:
        """`progress`: peers write to this agent's memory, so it must make progress without calls from this process.

        `batched`: UCX, and through it CUDA, get a write's pieces as one list instead of one by one.
        """
        self._binding, self.lanes = _load()
        config = self._binding.nixlAgentConfig()
        config.useProgThread = progress
        config.useListenThread = False
        config.pthrDelay = PROGRESS_PAUSE_US if progress else 0
        config.syncMode = self._binding.NIXL_THREAD_SYNC_NONE
        self._agent = self._do(lambda: self._binding.nixlAgent(name, config))
        with self.lanes.environment(), _setting(BATCHED, "y" if batched else "n"):
            self._backend = self._do(lambda: self._agent.createBackend(BACKEND, {}))
        self._uses: dict[str, int] = {}

    def register(self, *memories: MemoryRange) -> object:
        """Make memory usable for writes from and to it; returns what `deregister` takes."""
        entries = [(memory.address, memory.length, memory.device or 0, "") for memory in memories]
        registered = self._binding.nixlRegDList(self._kind(memories[0].device), entries)
        self._do(lambda: self._agent.registerMem(registered, [self._backend]))
        return registered

    def deregister(self, registered: object) -> None:
        self._do(lambda: self._agent.deregisterMem(registered, [self._backend]))

    def metadata(self) -> bytes:
        """Data with which peers reach the memory registered so far."""
        return bytes(self._do(self._agent.getLocalMD))

    def connect(self, name: str, metadata: bytes) -> None:
        """Make the agent `name` a peer; each call wants a `disconnect`.

        `metadata` must be what that agent gave, unchanged: see `descriptor`.
        """
        if self._uses.get(name, 0):
            self._uses[name] += 1
            return

        def load() -> None:
            loaded = self._agent.loadRemoteMD(metadata)
            loaded = loaded.decode() if isinstance(loaded, bytes) else loaded
            if loaded != name:
                self._agent.invalidateRemoteMD(loaded)
                raise UcxError(f"metadata: agent {loaded!r}, the descriptor names {name!r}")
            self._agent.makeConnection(name, [self._backend])

        self._uses[name] = 1
        try:
            self._do(load)
        except UcxError:
            self.disconnect(name)
            raise

    def disconnect(self, name: str) -> None:
        """Take one `connect` back; nothing posted for it may be pending. The last one drops the peer."""
        self._uses[name] -= 1
        if self._uses[name]:
            return
        del self._uses[name]
        try:
            self._do(lambda: self._agent.invalidateRemoteMD(name))
        except UcxError as error:
            log.debug("dropping %s: %s", name, error)

    def post(
        self, name: str, pieces: Sequence[Piece], source_device: int | None = None, target_device: int | None = None
    ) -> tuple[int, WriteState]:
        """Start writing `pieces` into the peer's registered memory; returns a handle that must be released once.

        Raises UcxError when nothing was started: memory that is not registered, a peer that is not known.
        """
        binding = self._binding
        sources = [(source, length, source_device or 0) for source, _, length in pieces]
        targets = [(target, length, target_device or 0) for _, target, length in pieces]
        handle: int = self._do(
            lambda: self._agent.createXferReq(
                binding.NIXL_WRITE,
                binding.nixlXferDList(self._kind(source_device), sources),
                binding.nixlXferDList(self._kind(target_device), targets),
                name,
                b"",
                [self._backend],
            )
        )
        return handle, self._state_of(lambda: self._agent.postXferReq(handle, b""))

    def state(self, handle: int) -> WriteState:
        """State of a posted write; an agent without a progress thread advances it in this call."""
        return self._state_of(lambda: self._agent.getXferStatus(handle))

    def release(self, handle: int) -> None:
        """Forget a write that is no longer pending. Its handle must not be used again."""
        try:
            self._do(lambda: self._agent.releaseXferReq(handle))
        except UcxError as error:
            log.warning("releasing a write: %s", error)

    def _kind(self, device: int | None) -> Any:
        return self._binding.DRAM_SEG if device is None else self._binding.VRAM_SEG

    def _state_of(self, call: Callable[[], Any]) -> WriteState:
        try:
            status = self._do(call)
        except UcxError as error:
            log.debug("a write broke: %s", error)
            return WriteState.BROKEN
        if status == self._binding.NIXL_IN_PROG:
            return WriteState.PENDING
        return WriteState.DONE if status == self._binding.NIXL_SUCCESS else WriteState.BROKEN

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _errors(self._binding) as error:
            raise UcxError(f"{type(error).__name__}: {error}") from error


@functools.cache
def _load() -> tuple[Any, LaneLog]:
    """The binding, and what all agents of this process together say of their lanes."""
    os.environ.update(CLOSED)
    try:
        from nixl_cu13 import _bindings as binding
    except ImportError as error:
        raise UcxError(f"transport ucx: the extra `ucx` is not installed ({error})") from error
    return binding, LaneLog.of_this_process()


@functools.cache
def _errors(binding: Any) -> tuple[type[Exception], ...]:
    named = [getattr(binding, name) for name in dir(binding) if name.startswith("nixl") and name.endswith("Error")]
    return (*named, RuntimeError, ValueError)
