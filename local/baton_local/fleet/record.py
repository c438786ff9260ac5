"""The record of a running deployment, `run.json` in the run directory: `baton up` writes it for the other commands."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from baton_local.errors import NotRunningError
from baton_local.fleet.run_dir import RunDir
from baton_wire.messages.values import POOL_ROLES


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process of the deployment."""

    name: str
    role: str
    phase: str
    revision: str
    starts: int
    pid: int | None
    host: str | None
    port: int | None
    admin_port: int | None = None
    pair_port: int | None = None
    """Where a decode worker takes prefill workers' links."""
    silent_since_s: float | None = None
    """Since when the process has not answered liveness checks, by the machine's monotonic clock; None: it answers."""

    last_end: str = ""
    """How its former process ended, in words; empty: none has ended, or an older `baton up` does not say it."""
    last_end_s: float | None = None
    """When its former process ended, by the machine's monotonic clock."""

    @property
    def address(self) -> str | None:
        return None if self.host is None else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A latency target of the manifest."""

    target_s: float
    percentile: float


class RunRecord(msgspec.Struct, frozen=True, rename={"processes": "posts"}):
    """One running deployment."""

    name: str
    namespace: str
    pid: int
    """Process id of `baton up`."""
    endpoint: str
    served_name: str
    ready: bool
    """True: it answers requests now."""
    decision: str
    """The latest sizing decision, in words: both pools' reasons together."""
    ttft: TargetRecord
    tpot: TargetRecord
    processes: tuple[ProcessRecord, ...]
    reasons: dict[str, str] = {}
    """Why each pool has its size."""
    limits: dict[str, tuple[int, int]] = {}
    """`replicas.min` and `replicas.max` of each pool."""
    mode: str = "SLO"
    """The scaling mode."""
    wanted: dict[str, int] = {}
    """Desired number of workers of each pool."""
    ranks: dict[str, int] = {}
    """Ranks of each worker, by pool; pools without are of an older `baton up`."""
    api_keys: str | None = None
    """The file or folder with the clients' API keys; None: the gateway needs none."""
    emulated: str | None = None
    """Description of the emulated workers; None: a model computes."""
    names: dict[str, str] = {}
    """The process at each address of this run, also at those that it has left."""
    was_ready: bool = True
    """False: it has never been ready, since it is starting. An older `baton up` does not say it."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The pools, by role: a deployment that generates nothing has no decode pool."""
        return tuple(self.limits) or tuple(role.value for role in POOL_ROLES)

    def ranks_text(self, role: str) -> str:
        """The ranks of each worker of a pool in words; empty for one."""
        ranks = self.ranks.get(role, 1)
        return "" if ranks == 1 else f" × {ranks} ranks"


class NotUpYetError(NotRunningError):
    """A deployment that has begun to start has no record yet."""


def read_record(run: RunDir) -> RunRecord:
    """The record of a run. Raises NotUpYetError when there is none (yet)."""
    try:
        return msgspec.json.decode(run.record.read_bytes(), type=RunRecord)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise NotUpYetError(f"{run.root.name} is not up yet") from error
