"""One running deployment on this machine: the shell around pure decisions, until it is told to stop.

It observes (children, announce files, the gateway's health), hands what it saw to `supervision` and to the fleet's
planning, and carries out what they answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from baton_control.sizing.decision.scaling import Sized
from baton_control.spec.api import IGNORED_SCALE_TO_ZERO, TargetSpec
from baton_control.worker_specs import Device, instance_arguments
from baton_local.fleet import supervision
from baton_local.fleet.bookkeeping import Bookkeeping
from baton_local.fleet.desired_processes import Fleet, PostSpec, leaving_posts, new_posts, roll
from baton_local.fleet.emulation import Emulation
from baton_local.fleet.flipping import FlipsUnderWay, posts_to_flip
from baton_local.fleet.health_polls import HealthPolls
from baton_local.fleet.local_site import LOOPBACK
from baton_local.fleet.log_rotation import rotate_logs
from baton_local.fleet.log_tail import last_line
from baton_local.fleet.pool_scaling import Scaling
from baton_local.fleet.processes import ChildProcesses
from baton_local.fleet.record import PostRecord, RunRecord, TargetRecord
from baton_local.fleet.run_dir import (
    RunDir,
    write_json,
)
from baton_local.fleet.supervision import Action, Patience, Phase, Supervisor
from baton_wire.announcement import Announcement, read_announcement
from baton_wire.keys import KeyDirectory
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.stop_signals import handle_stop_signals

POLL_S = 0.05


class LocalRuntime:
    """One running deployment."""

    def __init__(  # noqa: PLR0913
        self,
        run: RunDir,
        fleet: Fleet,
        processes: ChildProcesses,
        host: str,
        port: int,
        gpus: tuple[str, ...],
        patience: Patience,
        link: socket.socket,
        emulation: Emulation | None,
        api_keys: str | None,
    ) -> None:
        self._api_keys = api_keys
        self._run, self._fleet, self._processes = run, fleet, processes
        self._host, self._port, self._gpus = host, port, gpus
        self._supervisor = Supervisor(time.monotonic(), patience)
        self._specs: dict[str, PostSpec] = {}
        self._pids: dict[str, int] = {}
        self._log_starts: dict[str, int] = {}
        self._link, self._emulation = link, emulation
        self._wanted: dict[Role, int] = {}
        self._told_sizes: dict[Role, int] = {}
        self._told_hold = False
        self._decision = ""
        self._gpu_by_post: dict[str, str] = {}
        self._flips = FlipsUnderWay()
        self._status: int | None = None
        self._wake = asyncio.Event()
        self._written: RunRecord | None = None
        self._books = Bookkeeping(run.reserve, self._say)
        self._polls = HealthPolls(
            self._supervisor, self._endpoint, fleet.deployment.spec.gateway.processes, self._is_asleep, self._act
        )
        self._scaling = Scaling(
            fleet.deployment,
            KeyDirectory(run.keys),
            secrets.token_bytes(16),
            run.sizing,
            self._wake.set,
            None if emulation is None else emulation.prior,
        )

    async def serve(self) -> int:
        """Start everything, keep it running, stop it when asked; returns the exit status."""
        for role in POOL_ROLES:
            write_json(self._run.discovery(role), [])
        handle_stop_signals(asyncio.get_running_loop(), self._stop_asked, lambda: self._supervisor.stopping)
        if self._emulation is not None:
            self._say(f"EMULATED: no model computes here; {self._emulation.label}")
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
                health.cancel()
                await asyncio.wait([health])
        return self._status

    def _pass(self, now: float) -> None:
        self._observe(now)
        self._reconcile(now)
        self._act(self._supervisor.tick(now))
        self._write_record()
        self._books.retry(now)
        rotate_logs(self._run.logs)

    def _observe(self, now: float) -> None:
        for ended in self._processes.poll():
            said = last_line(self._run.log(ended.name), self._log_starts[ended.name])
            self._pids.pop(ended.name, None)
            self._act(self._supervisor.exited(ended.name, ended.status, said, now))
        for post in list(self._supervisor.posts.values()):
            if post.phase is Phase.STARTING:
                announcement = self._announcement(post)
                if announcement is not None:
                    self._act(self._supervisor.announced(post.name, announcement, now))

    def _announcement(self, post: supervision.Post) -> Announcement | None:
        """None: there is none, it cannot be read now, or it is of a former run's process that was about to end."""
        try:
            announcement = read_announcement(self._announce_file(post.name, post.incarnation))
        except OSError:
            return None
        is_own = announcement is not None and announcement.pid == self._pids.get(post.name)
        return announcement if is_own else None

    def _reconcile(self, now: float) -> None:
        """Size the pools and take the next rollout step, as on a cluster."""
        if self._supervisor.stopping:
            return
        self._want(self._fleet.gateway, now)
        self._forget_gone()
        running = self._running()
        routable = self._scaling.routable()
        sized = self._scaling.sized(running, routable)
        self._wanted = dict(sized.workers)
        self._tell(sized)
        self._flip(running, now)
        running = self._running()
        for change in roll(self._fleet, sized.workers, running, routable).changes:
            if change.workers > 0:
                taken = frozenset(self._specs)
                for spec in new_posts(self._fleet, change.role, change.revision, change.workers, taken):
                    self._want(spec, now)
            else:
                for spec in leaving_posts(change, running, self._usable(), self._started()):
                    self._act(self._supervisor.remove(spec.name, now))

    def _flip(self, running: tuple[PostSpec, ...], now: float) -> None:
        """Begin flips, and see which were carried out. Whoever flips counts in the new pool at once."""
        posts, store = self._supervisor.posts, self._scaling.store
        workers = {name: epoch for name, post in posts.items() if (epoch := _epoch(post)) is not None}
        carried_out = store.flips()
        ready = self._usable() & workers.keys()
        for spec, role in posts_to_flip(self._fleet, self._wanted, running, ready, self._started()):
            epoch = workers[spec.name]
            self._specs[spec.name] = PostSpec(spec.name, self._fleet.templates[role])
            self._flips.begin(spec.name, epoch, role, carried_out.get(epoch, 0), now)
            self._say(f"{spec.name}: told to be {role} instead of {spec.worker.role}")
            self._act(self._supervisor.flipped(spec.name, role))
        for flip in self._flips.follow(workers, carried_out):
            self._say(f"{flip.post}: {flip.role} after {now - flip.since_s:.2f} s (flip {flip.number})")
        self._scaling.order(self._flips.orders)

    def _running(self) -> tuple[PostSpec, ...]:
        """Workers that were started and not told to stop."""
        posts = self._supervisor.posts.values()
        return tuple(self._specs[p.name] for p in posts if p.role is not Role.GATEWAY and not p.leaving)

    def _forget_gone(self) -> None:
        for name in [name for name in self._specs if name not in self._supervisor.posts]:
            del self._specs[name]
            self._gpu_by_post.pop(name, None)

    def _usable(self) -> frozenset[str]:
        """Posts whose workers the gateway can use."""
        addresses = self._scaling.store.routable_addresses()
        posts = self._supervisor.posts.values()
        return frozenset(p.name for p in posts if (at := p.announcement) and f"{at.host}:{at.port}" in addresses)

    def _started(self) -> dict[str, float]:
        return {post.name: post.since_s for post in self._supervisor.posts.values()}

    def _tell(self, sized: Sized) -> None:
        decision = "; ".join(sized.reasons[role] for role in POOL_ROLES)
        if decision == self._decision:
            return
        moved = any(self._told_sizes.get(role) != count for role, count in sized.workers.items())
        self._decision = decision
        if moved or sized.holds is not self._told_hold:
            self._told_sizes, self._told_hold = dict(sized.workers), sized.holds
            self._say(f"pools: {decision}")

    def _want(self, spec: PostSpec, now: float) -> None:
        if spec.name not in self._specs:
            self._specs[spec.name] = spec
            self._act(self._supervisor.add(spec.name, spec.worker.role, now))

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case supervision.Start(post, incarnation):
                    self._act(self._start(self._specs[post], incarnation))
                case supervision.Signal(post, number):
                    self._processes.signal(post, number)
                case supervision.Publish(role, workers):
                    self._books.keep(self._run.discovery(role), [_address(each) for each in workers], time.monotonic())
                case supervision.Say(text):
                    self._say(text)
                case supervision.Ready():
                    self._write_record()
                    with contextlib.suppress(OSError):  # as in _say
                        print(f"ready {self._endpoint}", flush=True)
                case supervision.FinishRun(status, cause):
                    self._status = status
                    self._say(f"stopped: {cause}; logs are in {self._run.logs}" if cause else "stopped")

    def _start(self, spec: PostSpec, incarnation: int) -> list[Action]:
        role, worker = spec.worker.role, spec.worker
        announce = str(self._announce_file(spec.name, incarnation))
        anywhere = f"{LOOPBACK}:0"
        if role is Role.GATEWAY:
            arguments = instance_arguments(role, self._address, announce, anywhere)
        else:
            second = anywhere if "pair" in worker.ports else None
            arguments = instance_arguments(role, anywhere, announce, second, flips=worker.flips)
        log = self._run.log(spec.name)
        self._log_starts[spec.name] = log.stat().st_size if log.exists() else 0
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(worker.env), **self._gpu_of(spec)}
        try:
            pid = self._processes.start(spec.name, (*worker.argv, *arguments), environment, log)
        except OSError as error:
            return self._supervisor.not_started(spec.name, os.strerror(error.errno or 0), time.monotonic())
        self._pids[spec.name] = pid
        self._say(f"{spec.name}: started (pid {pid})")
        return []

    def _gpu_of(self, spec: PostSpec) -> dict[str, str]:
        """Workers take the GPUs in turn; more workers than GPUs share them."""
        if f"--device={Device.CUDA}" not in spec.worker.argv or not self._gpus:
            return {}
        if spec.name not in self._gpu_by_post:
            taken = Counter(self._gpu_by_post.values())
            self._gpu_by_post[spec.name] = min(self._gpus, key=lambda gpu: taken[gpu])
        return {"CUDA_VISIBLE_DEVICES": self._gpu_by_post[spec.name]}

    def _is_asleep(self) -> bool:
        return bool(self._wanted) and not any(self._wanted.values())

    def _stop_asked(self) -> None:
        self._act(self._supervisor.stop(time.monotonic()))
        self._wake.set()

    @property
    def _address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def _endpoint(self) -> str:
        return f"http://{self._address}"

    def _announce_file(self, post: str, incarnation: int) -> Path:
        return self._run.announcements / f"{post}.{incarnation}.json"

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody may be reading any more, which is no reason to stop
            print(f"baton: {text}", file=sys.stderr, flush=True)

    def _write_record(self) -> None:
        metadata, spec = self._fleet.deployment.metadata, self._fleet.deployment.spec
        record = RunRecord(
            name=metadata.name,
            namespace=metadata.namespace,
            pid=os.getpid(),
            endpoint=self._endpoint,
            served_name=spec.model.served_name,
            ready=self._supervisor.was_ready and self._supervisor.routable,
            decision=self._decision,
            mode=str(self._scaling.mode),
            wanted={role.value: count for role, count in self._wanted.items()},
            emulated=self._emulation.label if self._emulation else None,
            api_keys=self._api_keys,
            ttft=_target(spec.slo.ttft),
            tpot=_target(spec.slo.tpot),
            posts=tuple(self._post_record(post) for post in self._supervisor.posts.values()),
        )
        if record != self._written:
            self._books.keep(self._run.record, asdict(record), time.monotonic())
            self._written = record

    def _post_record(self, post: supervision.Post) -> PostRecord:
        at = post.announcement
        return PostRecord(
            name=post.name,
            role=post.role,
            phase=post.phase.value,
            revision=str(self._specs[post.name].worker.revision),
            starts=post.incarnation,
            pid=self._pids.get(post.name),
            host=at.host if at else None,
            port=at.port if at else None,
            admin_port=at.admin_port if at else None,
        )


def _epoch(post: supervision.Post) -> bytes | None:
    """Which process the post has; None: none that is ready."""
    announced = post.announcement
    if post.phase is not Phase.READY or post.leaving or announced is None or announced.epoch is None:
        return None
    return bytes.fromhex(announced.epoch)


def _address(worker: Announcement) -> dict[str, object]:
    address: dict[str, object] = {"host": worker.host, "port": worker.port}
    return address if worker.pair_port is None else {**address, "pair_port": worker.pair_port}


def _target(spec: TargetSpec) -> TargetRecord:
    return TargetRecord(spec.target, spec.percentile)
