"""A worker's transports load their libraries while weights are loaded, and never stop a start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from baton_kv_transfer.transports.table import TABLE
from baton_testing.kv_transfer.nixl import NEEDS_UCX
from baton_wire.errors import TransferError
from baton_wire.messages.values import Role
from baton_worker.building import transfer
from baton_worker.building.transfer import LoadedAhead
from baton_worker.config import WorkerConfig, parse
from baton_worker.errors import ConfigError

CONFIG = parse(
    Role.DECODE, ("--model=/m", "--served-name=tiny", "--listen=127.0.0.1:0", "--keys=/k", "--transport=tcp")
)


@pytest.fixture
def loaded_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], LoadedAhead]:
    """Begins to load with a transport that does this."""

    def begin(load: Callable[[], None]) -> LoadedAhead:
        monkeypatch.setattr(transfer, "transports", lambda config: (replace(TABLE[-1], load=load),))
        return LoadedAhead(CONFIG)

    return begin


def test_the_start_goes_on_meanwhile_and_waits_in_the_end(
    loaded_by: Callable[[Callable[[], None]], LoadedAhead],
) -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def load() -> None:
        assert may_end.wait(20)
        has_ended.set()

    ahead = loaded_by(load)
    assert not has_ended.is_set()
    may_end.set()
    ahead.wait()
    assert has_ended.is_set()


def test_what_fails_here_is_left_to_the_transport_s_own_start(
    loaded_by: Callable[[Callable[[], None]], LoadedAhead],
) -> None:
    def load() -> None:
        raise TransferError("no device")

    loaded_by(load).wait()


def test_one_that_hangs_is_waited_for_within_its_bound_and_does_not_hold_the_process(
    loaded_by: Callable[[Callable[[], None]], LoadedAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LOAD_S", 0.01)
    never = threading.Event()
    try:
        loaded_by(lambda: _wait(never)).wait()
        (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("transport ")]
        assert thread.is_alive()
        assert thread.daemon
    finally:
        never.set()


def _wait(event: threading.Event) -> None:
    event.wait(60)


SLOW = """
import time
from dataclasses import replace
from baton_kv_transfer.transports.table import TABLE
from baton_wire.messages.values import Role
from baton_worker.building import transfer
from baton_worker.config import parse

def load():
    time.sleep(0.5)
    print("loaded", flush=True)

transfer.transports = lambda config: (replace(TABLE[-1], load=load),)
transfer.LoadedAhead(parse(Role.DECODE, ("--model=/m", "--served-name=t", "--listen=127.0.0.1:0", "--keys=/k")))
raise SystemExit(2)
"""


def test_a_start_that_fails_meanwhile_ends_with_its_own_status() -> None:
    """UCX in another thread of a process that ends would call `terminate`."""
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (2, ["loaded"]), done.stderr


def test_a_transport_that_is_not_installed_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offered(choice: object) -> tuple[()]:
        raise ValueError("transport: ucx needs the extra `ucx`")

    monkeypatch.setattr(transfer, "offered", offered)
    with pytest.raises(ConfigError, match="argument --transport: transport: ucx needs the extra `ucx`"):
        LoadedAhead(CONFIG)


@NEEDS_UCX
def test_ucx_leaves_nothing_behind_but_its_libraries() -> None:
    config: WorkerConfig = replace(CONFIG, transport="ucx")
    LoadedAhead(config).wait()
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    LoadedAhead(config).wait()
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert not [name for name in os.environ if name.startswith("UCX_PROTO")]
