"""One running deployment on this machine: the shell around pure decisions, until a signal stops it.

It observes child processes, announce files and the gateway's health, passes what it saw to `supervision` and to the
planning of the fleet, and carries out their actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_control.history_facts import HistoryFacts, flatten_spec
from baton_control.sizing.decision.scaling import Sized
from baton_control.spec.api import IGNORED_SCALE_TO_ZERO, LLMDeployment
from baton_control.worker_specs import Device, instance_arguments, pool_roles, pool_spec
from baton_gateway.reporting.metrics_page import own_version
from baton_local.fleet import supervision
from baton_local.fleet.address_names import AddressNames
from baton_local.fleet.bookkeeping import Bookkeeping
from baton_local.fleet.desired_processes import Fleet, SlotSpec, new_slots, roll, slots_to_stop
from baton_local.fleet.emulation import Emulation
from baton_local.fleet.flipping import FlipsUnderWay, slots_to_flip
from baton_local.fleet.gpu_placement import SlotGpus
from baton_local.fleet.health_polls import HealthPolls
from baton_local.fleet.kept_history import KeptHistory
from baton_local.fleet.local_site import LOOPBACK
from baton_local.fleet.local_tenants import LocalTenants
from baton_local.fleet.log_rotation import rotate_logs
from baton_local.fleet.log_tail import age_s, last_line
from baton_local.fleet.own_log import PROCESS, OwnLog
from baton_local.fleet.pool_scaling import Scaling, in_flags
from baton_local.fleet.processes import ChildProcesses
from baton_local.fleet.record import ProcessRecord, RunRecord, TargetRecord
from baton_local.fleet.run_dir import RunDir, write_json
from baton_local.fleet.scrape_targets import scrape_targets
from baton_local.fleet.supervision import Action, Exit, Patience, Phase, Supervisor
from baton_wire.announcement import Announcement, read_announcement
from baton_wire.keys import KeyDirectory
from baton_wire.log_format import chosen_format
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.stop_signals import handle_stop_signals

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A deployment that is about to run, with everything that this machine decided for it."""

    run: RunDir
    fleet: Fleet
    host: str
    """IP address of the gateway."""
    port: int
    """Port of the gateway."""
    gpus: tuple[str, ...]
    """GPUs for the workers, as CUDA_VISIBLE_DEVICES names them."""
    patience: Patience
    emulation: Emulation | None
    api_keys: str | None
    """File or folder with the clients' API keys; None: the gateway needs none."""
    tenants: LocalTenants | None = None
    """The table of LLMTenants; None: the deployment lets none in."""

    @property
    def address(self) -> str:
        """The gateway's `host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def endpoint(self) -> str:
        """The gateway's URL."""
        return f"http://{self.address}"


class LocalRuntime:
    """One running deployment. `link` listens for the gateways' telemetry."""

    def __init__(self, plan: RunPlan, processes: ChildProcesses, link: socket.socket) -> None:
        self._plan, self._processes, self._link = plan, processes, link
        self._sizing_at = ":".join(map(str, link.getsockname()[:2]))
        self._run, self._fleet = plan.run, plan.fleet
        self._supervisor = Supervisor(time.monotonic(), plan.patience)
        self._specs: dict[str, SlotSpec] = {}
        self._pids: dict[str, int] = {}
        self._log_starts: dict[str, int] = {}
        self._wanted: dict[Role, int] = {}
        self._printed_sizes: dict[Role, int] = {}
        self._printed_hold = False
        self._decision = ""
        self._reasons: dict[str, str] = {}
        self._addresses = AddressNames()
        self._in_words = in_flags if plan.run.manifest.exists() else str  # flags, without a manifest
        self._gpus = SlotGpus(plan.gpus)
        self._flips = FlipsUnderWay()
        self._status: int | None = None
        self._wake = asyncio.Event()
        self._written: RunRecord | None = None
        self._say = OwnLog(plan.run.log(PROCESS), chosen_format(None, os.environ)).say
        self._books = Bookkeeping(plan.run.reserve, self._say)
        self._history = KeptHistory(plan.run.history, self._books.keep, time.time())
        self._spec_fields = flatten_spec(plan.fleet.deployment.spec.model_dump(mode="json", by_alias=True))
        deployment = plan.fleet.deployment
        self._polls = HealthPolls(
            self._supervisor, plan.endpoint, deployment.spec.gateway.processes, self._is_asleep, self._act
        )
        self._scaling = Scaling(
            deployment,
            KeyDirectory(plan.run.keys),
            secrets.token_bytes(16),
            plan.run.sizing,
            self._wake.set,
            None if plan.emulation is None else plan.emulation.prior,
        )
        if plan.tenants is not None:
            self._scaling.set_counts(plan.tenants.counts)

    async def serve(self) -> int:
        """Start all processes, keep them running, stop them at a signal; returns the exit status."""
        for role in POOL_ROLES:
            write_json(self._run.discovery(role), [])
        handle_stop_signals(asyncio.get_running_loop(), self._stop, lambda: self._supervisor.stopping)
        if self._plan.emulation is not None:
            self._say(f"EMULATED: no model computes here; {self._plan.emulation.label}")
        if self._fleet.deployment.spec.autoscaling.is_kept_awake:
            self._say(IGNORED_SCALE_TO_ZERO)
        health = asyncio.create_task(self._polls.run())
        async with self._scaling.serving(self._link):
            try:
                while self._status is None:
                    if health.done():
                        health.result()
                    self._pass(time.monotonic())
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):  # wait_for of Python 3.11 may swallow a cancellation
                            await self._wake.wait()
                    self._wake.clear()
            finally:
                if self._plan.tenants is not None:
                    self._plan.tenants.save()
                health.cancel()
                await asyncio.wait([health])
        return self._status

    def _pass(self, now: float) -> None:
        self._observe(now)
        self._reconcile(now)
        self._act(self._supervisor.tick(now))
        self._write_record()
        if self._history.is_due(now):
            self._history.look(self._facts(), self._reasons, time.time(), now)
            self._scaling.announce(self._history.history.with_reasons(self._reasons, dict(self._wanted.items())))
        if self._plan.tenants is not None:
            self._plan.tenants.refresh(now)
        self._books.retry(now)
        rotate_logs(self._run.logs)

    def _observe(self, now: float) -> None:
        for ended in self._processes.poll():
            log = self._run.log(ended.name)
            line = last_line(log, self._log_starts[ended.name])
            self._pids.pop(ended.name, None)
            self._history.note_end(ended.name, ended.status, self._supervisor.slots[ended.name].kill_reason)
            self._act(self._supervisor.exited(ended.name, Exit(ended.status, line, age_s(log, time.time())), now))
        for slot in list(self._supervisor.slots.values()):
            if slot.phase is Phase.STARTING:
                announcement = self._announcement(slot)
                if announcement is not None:
                    self._act(self._supervisor.announced(slot.name, announcement, now))

    def _announcement(self, slot: supervision.ProcessSlot) -> Announcement | None:
        """The announcement of a slot's process. None: there is none, it cannot be read now, or a process of a former
        run wrote it just before it ended."""
        try:
            announcement = read_announcement(self._announce_file(slot.name, slot.incarnation))
        except OSError:
            return None
        is_own = announcement is not None and announcement.pid == self._pids.get(slot.name)
        return announcement if is_own else None

    def _reconcile(self, now: float) -> None:
        """Size the pools and take the next rollout step, as on a cluster."""
        if self._supervisor.stopping:
            return
        self._want(self._fleet.gateway, now)
        self._forget_gone()
        running = self._running()
        routable = self._scaling.routable()
        sized = self._scaling.size(running, routable)
        self._wanted = dict(sized.workers)
        self._report_sizes(sized)
        self._flip(running, now)
        running = self._running()
        for change in roll(self._fleet, sized.workers, running, routable).changes:
            if change.workers > 0:
                taken = frozenset(self._specs)
                for spec in new_slots(self._fleet, change.role, change.revision, change.workers, taken):
                    self._want(spec, now)
            else:
                for spec in slots_to_stop(change, running, self._usable(), self._started()):
                    self._act(self._supervisor.remove(spec.name, now))

    def _flip(self, running: tuple[SlotSpec, ...], now: float) -> None:
        """Order flips, and close those that were carried out. A worker that flips counts in its new pool at once."""
        slots, store = self._supervisor.slots, self._scaling.store
        workers = {name: epoch for name, slot in slots.items() if (epoch := _epoch(slot)) is not None}
        carried_out = store.flips()
        ready = self._usable() & workers.keys()
        for spec, role in slots_to_flip(self._fleet, self._wanted, running, ready, self._started()):
            epoch = workers[spec.name]
            self._specs[spec.name] = SlotSpec(spec.name, self._fleet.templates[role])
            self._flips.begin(spec.name, epoch, role, carried_out.get(epoch, 0), now)
            self._say(f"{spec.name}: ordered to flip from {spec.worker.role} to {role}")
            self._act(self._supervisor.flipped(spec.name, role))
        for flip in self._flips.follow(workers, carried_out):
            self._say(f"{flip.slot}: {flip.role} after {now - flip.since_s:.2f} s (flip {flip.number})")
        self._scaling.order(self._flips.orders)

    def _running(self) -> tuple[SlotSpec, ...]:
        """Workers that were started and not stopped."""
        slots = self._supervisor.slots.values()
        return tuple(self._specs[p.name] for p in slots if p.role is not Role.GATEWAY and not p.leaving)

    def _forget_gone(self) -> None:
        for name in [name for name in self._specs if name not in self._supervisor.slots]:
            del self._specs[name]
            self._gpus.forget(name)

    def _usable(self) -> frozenset[str]:
        """Slots whose workers the gateway can use."""
        addresses = self._scaling.store.routable_addresses()
        slots = self._supervisor.slots.values()
        return frozenset(p.name for p in slots if (at := p.announcement) and f"{at.host}:{at.port}" in addresses)

    def _started(self) -> dict[str, float]:
        return {slot.name: slot.since_s for slot in self._supervisor.slots.values()}

    def _report_sizes(self, sized: Sized) -> None:
        self._reasons = {role.value: self._in_words(sized.reasons[role]) for role in pool_roles(self._fleet.deployment)}
        decision = "; ".join(self._reasons.values())
        if decision == self._decision:
            return
        moved = any(self._printed_sizes.get(role) != count for role, count in sized.workers.items())
        self._decision = decision
        if moved or sized.holds is not self._printed_hold:
            self._printed_sizes, self._printed_hold = dict(sized.workers), sized.holds
            self._say(f"pools: {decision}")

    def _want(self, spec: SlotSpec, now: float) -> None:
        if spec.name not in self._specs:
            self._specs[spec.name] = spec
            self._act(self._supervisor.add(spec.name, spec.worker.role, now))

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case supervision.Start(slot, incarnation):
                    self._act(self._start(self._specs[slot], incarnation))
                case supervision.Signal(slot, number):
                    self._processes.signal(slot, number)
                case supervision.Publish(role, workers):
                    self._books.keep(
                        self._run.discovery(role), [_address(worker) for worker in workers], time.monotonic()
                    )
                case supervision.Say(text):
                    self._say(text)
                case supervision.Ready():
                    self._write_record()
                    with contextlib.suppress(OSError):  # as in OwnLog
                        print(f"ready {self._plan.endpoint}", flush=True)
                case supervision.FinishRun(status, cause):
                    self._status = status
                    self._say(f"stopped: {cause}; logs are in {self._run.logs}" if cause else "stopped")

    def _start(self, spec: SlotSpec, incarnation: int) -> list[Action]:
        role, worker = spec.worker.role, spec.worker
        announce = str(self._announce_file(spec.name, incarnation))
        anywhere = f"{LOOPBACK}:0"
        if role is Role.GATEWAY:
            arguments = instance_arguments(role, self._plan.address, announce, anywhere)
        else:
            second = anywhere if "pair" in worker.ports else None
            arguments = instance_arguments(role, anywhere, announce, second, flips=worker.flips)
        log = self._run.log(spec.name)
        self._log_starts[spec.name] = log.stat().st_size if log.exists() else 0
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(worker.env), **self._gpus_of(spec)}
        try:
            pid = self._processes.start(spec.name, (*worker.argv, *arguments), environment, log)
        except OSError as error:
            return self._supervisor.not_started(spec.name, os.strerror(error.errno or 0), time.monotonic())
        self._pids[spec.name] = pid
        self._say(f"{spec.name}: started (pid {pid})")
        return []

    def _gpus_of(self, spec: SlotSpec) -> dict[str, str]:
        """The variable that gives a worker on GPUs one for each of its ranks."""
        if f"--device={Device.CUDA}" not in spec.worker.argv:
            return {}
        return self._gpus.environment(spec.name, pool_spec(self._fleet.deployment, spec.worker.role).tensor_parallel)

    def _is_asleep(self) -> bool:
        return bool(self._wanted) and not any(self._wanted.values())

    def _stop(self) -> None:
        self._act(self._supervisor.stop(time.monotonic()))
        self._wake.set()

    def _announce_file(self, slot: str, incarnation: int) -> Path:
        return self._run.announcements / f"{slot}.{incarnation}.json"

    def _write_record(self) -> None:
        metadata, spec = self._fleet.deployment.metadata, self._fleet.deployment.spec
        roles = pool_roles(self._fleet.deployment)
        record = RunRecord(
            name=metadata.name,
            namespace=metadata.namespace,
            pid=os.getpid(),
            endpoint=self._plan.endpoint,
            served_name=spec.model.served_name,
            ready=self._supervisor.was_ready and self._supervisor.routable,
            names=self._addresses.note(self._supervisor.slots.values()),
            was_ready=self._supervisor.was_ready,
            decision=self._decision,
            reasons=self._reasons,
            limits={role.value: _limits(self._fleet.deployment, role) for role in roles},
            mode=str(self._scaling.mode),
            wanted={role.value: count for role, count in self._wanted.items() if role in roles},
            ranks={role.value: pool_spec(self._fleet.deployment, role).tensor_parallel for role in roles},
            emulated=self._plan.emulation.label if self._plan.emulation else None,
            api_keys=self._plan.api_keys,
            ttft=TargetRecord(spec.slo.ttft.target, spec.slo.ttft.percentile),
            tpot=TargetRecord(spec.slo.tpot.target, spec.slo.tpot.percentile),
            processes=tuple(self._process_record(slot) for slot in self._supervisor.slots.values()),
        )
        if record != self._written:
            now = time.monotonic()
            self._books.keep(self._run.record, msgspec.to_builtins(record), now)
            self._books.keep(self._run.scrape_targets, scrape_targets(record, self._sizing_at), now)
            self._written = record

    def _facts(self) -> HistoryFacts:
        deployment, tenants = self._fleet.deployment, self._plan.tenants
        return HistoryFacts(
            version=own_version(),
            spec=self._spec_fields,
            sizes={role.value: count for role, count in self._wanted.items() if role in pool_roles(deployment)},
            most={role.value: pool_spec(deployment, role).replicas.max for role in pool_roles(deployment)},
            starts={slot.name: slot.incarnation for slot in self._supervisor.slots.values()},
            problems={} if tenants is None or not tenants.problem else {"LLMTenants": tenants.problem},
        )

    def _process_record(self, slot: supervision.ProcessSlot) -> ProcessRecord:
        at = slot.announcement
        return ProcessRecord(
            name=slot.name,
            role=slot.role,
            phase=slot.phase.value,
            revision=str(self._specs[slot.name].worker.revision),
            starts=slot.incarnation,
            pid=self._pids.get(slot.name),
            host=at.host if at else None,
            port=at.port if at else None,
            admin_port=at.admin_port if at else None,
            pair_port=at.pair_port if at else None,
            silent_since_s=slot.silent_since_s if slot.phase is Phase.READY else None,
            last_end=slot.last_end,
            last_end_s=slot.last_end_s,
        )


def _epoch(slot: supervision.ProcessSlot) -> bytes | None:
    """The epoch of the slot's process; None: no process of it is ready."""
    announced = slot.announcement
    if slot.phase is not Phase.READY or slot.leaving or announced is None or announced.epoch is None:
        return None
    return bytes.fromhex(announced.epoch)


def _address(worker: Announcement) -> dict[str, object]:
    address: dict[str, object] = {"host": worker.host, "port": worker.port}
    return address if worker.pair_port is None else {**address, "pair_port": worker.pair_port}


def _limits(deployment: LLMDeployment, role: Role) -> tuple[int, int]:
    replicas = pool_spec(deployment, role).replicas
    return replicas.min, replicas.max
