"""What runs, as `baton up` writes it down for the other commands: `run.json` in the run directory."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from baton_local.errors import NotRunningError
from baton_local.fleet.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class PostRecord:
    """One process."""

    name: str
    role: str
    phase: str
    revision: str
    starts: int
    pid: int | None
    host: str | None
    port: int | None
    admin_port: int | None = None

    @property
    def address(self) -> str | None:
        return None if self.host is None else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A latency target of the manifest."""

    target_s: float
    percentile: float


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One running deployment."""

    name: str
    namespace: str
    pid: int
    """Of `baton up`."""
    endpoint: str
    served_name: str
    ready: bool
    decision: str
    """How the pools were sized, in words."""
    ttft: TargetRecord
    tpot: TargetRecord
    posts: tuple[PostRecord, ...]
    mode: str = "SLO"
    """Who sizes the pools."""
    wanted: dict[str, int] = field(default_factory=dict)
    """Workers that each pool should have."""
    api_keys: str | None = None
    """The file or folder with the keys of clients; None: the gateway asks for none."""
    emulated: str | None = None
    """What stands in for computing; None: a model computes."""


def read_record(run: RunDir) -> RunRecord:
    """The record of a run. Raises NotRunningError when there is none (yet)."""
    try:
        return msgspec.json.decode(run.record.read_bytes(), type=RunRecord)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise NotRunningError(f"{run.root.name} is not up yet: try again") from error
