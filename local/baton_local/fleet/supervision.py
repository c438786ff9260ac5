"""The supervisor of a deployment's processes: start, restart with back-off, publish, stop in order. Pure.

It is a machine of plain values: events with `now` go in, actions come out, and `LocalRuntime` carries them out. A
*process slot* holds one process; each start of its process is an *incarnation*. Until the deployment was ready once, a
process that cannot work (bad configuration, or too many crashes) ends the run; afterwards every process is restarted,
with a growing back-off. Ready is more than routable: a prefill worker may answer alone while the only decode worker
refuses its configuration. A process that hangs is killed, and then treated like one that ended.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field

from baton_wire.announcement import Announcement
from baton_wire.messages.values import Role

BAD_CONFIGURATION = 2
"""Exit status of a process that refuses its configuration."""
OLD_LINE_S = 2.0
"""Age from which the last line of a log is probably not about the end of its process."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits, in seconds."""

    first_ready_s: float = 600.0
    start_s: float = 600.0
    """For each start of a process, until it announces its address."""
    silent_s: float = 30.0
    """A process that was ready hangs once it has not answered for this long."""
    live_poll_s: float = 2.0
    """Interval of liveness checks."""
    live_answer_s: float = 3.0
    """Timeout of a liveness check."""
    backoff_s: float = 0.5
    """Delay before the first restart; doubles with each failure in a row."""
    max_backoff_s: float = 30.0
    stable_s: float = 30.0
    """A process that was ready for this long restarts with the shortest back-off."""
    crashes_before_ready: int = 3
    gateway_stop_s: float = 15.0
    worker_stop_s: float = 15.0
    worker_leave_s: float = 630.0
    """For a worker that is removed while others keep serving, so that its requests can end."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process."""

    status: int
    """Its exit status; negative for a signal."""
    last_line: str = ""
    """The last line of its log; empty: it wrote none."""
    line_age_s: float | None = None
    """How long before its end the process wrote that line; None: unknown."""


class Phase(enum.Enum):
    """Phase of a process slot."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process of a slot."""

    slot: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the process of a slot; SIGKILL goes to its whole group."""

    slot: str
    number: signal.Signals


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the addresses of a role's workers, which changed."""

    role: Role
    workers: tuple[Announcement, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """Print a line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Announce the first time that the deployment answers requests and each pool with workers has a ready one."""


@dataclass(frozen=True, slots=True)
class FinishRun:
    """End with this exit status: no process runs any more."""

    status: int
    cause: str | None


Action = Start | Signal | Publish | Say | Ready | FinishRun


@dataclass(slots=True)
class ProcessSlot:
    """A slot for one process, with the state of that process. Changed by the supervisor only."""

    name: str
    role: Role
    phase: Phase
    since_s: float
    """When the phase began; for WAITING, when it ends."""
    incarnation: int = 0
    failures: int = 0
    """Failures in a row."""
    announcement: Announcement | None = None
    silent_since_s: float | None = None
    """Time of the first unanswered check; None: the process answered the last one."""
    kill_reason: str = ""
    """Why the supervisor killed the process; empty: it did not."""
    last_end: str = ""
    """How its former process ended, in words; empty: no process of it has ended."""
    last_end_s: float | None = None
    """When its former process ended."""
    stop_by_s: float | None = None
    leaving: bool = False
    """True: the slot is removed once its process ended."""


@dataclass(slots=True)
class Supervisor:
    """The supervisor of all process slots of one deployment. `start_s` is the time at which it was made."""

    start_s: float
    patience: Patience = Patience()
    slots: dict[str, ProcessSlot] = field(default_factory=dict)
    was_ready: bool = False
    routable: bool = False
    stopping: bool = False
    status: int = 0
    cause: str | None = None
    finished: bool = False

    def add(self, name: str, role: Role, now: float) -> list[Action]:
        """Add a process slot and start its process. Adding an existing one changes nothing."""
        if name in self.slots or self.stopping:
            return []
        slot = self.slots[name] = ProcessSlot(name, role, Phase.WAITING, now)
        return self._start(slot, now)

    def remove(self, name: str, now: float) -> list[Action]:
        """Remove a process slot: its process is stopped and not restarted."""
        slot = self.slots[name]
        if slot.leaving or self.stopping:
            return []
        slot.leaving = True
        if slot.phase is Phase.WAITING:
            return self._gone(slot)
        return self._stop(slot, now)

    def flipped(self, name: str, role: Role) -> list[Action]:
        """A process was ordered to change its role: it is published, and later restarted, in the new one."""
        slot = self.slots[name]
        before, slot.role = slot.role, role
        return [*self._publish(before), *self._publish(role)]

    def announced(self, name: str, announcement: Announcement, now: float) -> list[Action]:
        """A process announced its address: it is ready."""
        slot = self.slots.get(name)
        if slot is None or slot.phase is not Phase.STARTING:
            return []
        took = now - slot.since_s
        slot.phase, slot.since_s, slot.announcement, slot.silent_since_s = Phase.READY, now, announcement, None
        state = "listening" if slot.role is Role.GATEWAY else "ready"  # "ready" is the deployment, with its workers
        text = f"{name}: {state} after {took:.1f} s (pid {announcement.pid}, {announcement.host}:{announcement.port})"
        return [Say(text), *self._publish(slot.role)]

    def checked_live(self, name: str, incarnation: int, is_live: bool, now: float) -> list[Action]:
        """A ready process answered a liveness check, or did not. Silence counts from the first unanswered check, so
        that time without checks (while `baton up` itself was stopped) does not count."""
        slot = self.slots.get(name)
        if slot is None or slot.phase is not Phase.READY or slot.incarnation != incarnation:
            return []
        if is_live:
            slot.silent_since_s = None
            return []
        if slot.silent_since_s is None:
            slot.silent_since_s = now
        if now - slot.silent_since_s < self.patience.silent_s:
            return []
        slot.silent_since_s = now
        return self._kill(slot, f"did not answer for {self.patience.silent_s:g} s")

    def not_started(self, name: str, reason: str, now: float) -> list[Action]:
        """The system could not start a process (no memory, descriptors or disk space): it counts as ended at once."""
        slot = self.slots[name]
        slot.last_end, slot.last_end_s = f"cannot be started: {reason}", now
        return self._failed(slot, f"{name}: {slot.last_end}", now)

    def exited(self, name: str, end: Exit, now: float) -> list[Action]:
        """A process ended by itself or after a signal."""
        slot = self.slots[name]
        was, slot.announcement, slot.stop_by_s, slot.silent_since_s = slot.phase, None, None, None
        kill_reason, slot.kill_reason = slot.kill_reason, ""
        actions = self._publish(slot.role) if was in (Phase.READY, Phase.STOPPING) else []
        if self.stopping or slot.leaving:
            return actions + self._gone(slot) + self._next_to_stop(now)
        was_stable = was is Phase.READY and now - slot.since_s >= self.patience.stable_s
        slot.failures = 0 if was_stable else slot.failures
        slot.last_end, slot.last_end_s = _describe_exit(end, kill_reason), now
        failure = f"{name}: {slot.last_end}"
        if not self.was_ready and end.status == BAD_CONFIGURATION:
            slot.phase = Phase.STOPPED
            return actions + self._give_up(end.last_line or failure, now)
        return actions + self._failed(slot, failure, now)

    def observed_routable(self, routable: bool | None) -> list[Action]:
        """The gateway reported that it can route requests now, or that it cannot. None: it did not answer, so nothing
        changes."""
        if routable is None:
            return []
        before, self.routable = self.routable, routable
        if self.stopping:
            return []
        if routable and not self.was_ready:
            self.was_ready = not self._roles_without_ready()
            return [Ready()] if self.was_ready else []
        if routable == before:
            return []
        if routable:
            return [Say("routable again")]
        is_up = any(slot.role is Role.GATEWAY and slot.phase is Phase.READY for slot in self.slots.values())
        cause = "no fitting pair of prefill and decode worker is linked" if is_up else "no gateway is ready"
        return [Say(f"not routable: {cause}")]

    def tick(self, now: float) -> list[Action]:
        """The actions that are due now: restarts, kills after a timeout, and giving up."""
        actions: list[Action] = []
        for slot in self.slots.values():
            if slot.phase is Phase.WAITING and now >= slot.since_s and not self.stopping:
                actions += self._start(slot, now)
            elif slot.phase is Phase.STARTING and now - slot.since_s >= self.patience.start_s:
                slot.since_s = now
                actions += self._kill(slot, f"was not ready after {self.patience.start_s:g} s")
            elif slot.phase is Phase.STOPPING and slot.stop_by_s is not None and now >= slot.stop_by_s:
                slot.stop_by_s = None
                actions += self._kill(slot, "did not stop in time")
        if not self.was_ready and not self.stopping and now - self.start_s >= self.patience.first_ready_s:
            actions += self._give_up(f"not ready after {self.patience.first_ready_s:g} s: {self._missing()}", now)
        return actions

    def stop(self, now: float) -> list[Action]:
        """Stop the gateway first, so that its requests can end, then the workers. A second call kills everything."""
        if self.finished:
            return []
        if self.stopping:
            running = [slot for slot in self.slots.values() if slot.phase is not Phase.STOPPED]
            return [Signal(slot.name, signal.SIGKILL) for slot in running]
        self.stopping = True
        actions: list[Action] = [Say("stopping")]
        for slot in self.slots.values():
            if slot.phase is Phase.WAITING:
                slot.phase = Phase.STOPPED
        return actions + self._next_to_stop(now)

    def _give_up(self, cause: str, now: float) -> list[Action]:
        self.status, self.cause = 1, cause
        return self.stop(now)

    def _kill(self, slot: ProcessSlot, why: str) -> list[Action]:
        slot.kill_reason = why
        return [Say(f"{slot.name}: {why}, killed"), Signal(slot.name, signal.SIGKILL)]

    def _start(self, slot: ProcessSlot, now: float) -> list[Action]:
        slot.phase, slot.since_s, slot.incarnation = Phase.STARTING, now, slot.incarnation + 1
        return [Start(slot.name, slot.incarnation)]

    def _failed(self, slot: ProcessSlot, failure: str, now: float) -> list[Action]:
        """A process failed: restart it after the back-off, or give up."""
        slot.failures += 1
        if not self.was_ready and slot.failures >= self.patience.crashes_before_ready:
            slot.phase = Phase.STOPPED
            return self._give_up(failure, now)
        delay = min(self.patience.backoff_s * 2 ** (slot.failures - 1), self.patience.max_backoff_s)
        slot.phase, slot.since_s = Phase.WAITING, now + delay
        return [Say(f"{failure}; restarting it in {delay:g} s")]

    def _stop(self, slot: ProcessSlot, now: float) -> list[Action]:
        if self.stopping and slot.leaving and slot.stop_by_s is not None:
            slot.stop_by_s = min(slot.stop_by_s, now + self.patience.worker_stop_s)
        if slot.phase not in (Phase.STARTING, Phase.READY):
            return []
        limit = self.patience.gateway_stop_s if slot.role is Role.GATEWAY else self.patience.worker_stop_s
        if slot.leaving and not self.stopping:
            limit = self.patience.worker_leave_s
        slot.phase, slot.stop_by_s = Phase.STOPPING, now + limit
        return [Signal(slot.name, signal.SIGTERM)]

    def _next_to_stop(self, now: float) -> list[Action]:
        """While stopping: stop the gateways; once they are gone, the workers; once those are gone, finish the run."""
        if not self.stopping or self.finished:
            return []
        left = [slot for slot in self.slots.values() if slot.phase is not Phase.STOPPED]
        if not left:
            self.finished = True
            return [FinishRun(self.status, self.cause)]
        gateways = [slot for slot in left if slot.role is Role.GATEWAY]
        return [action for slot in gateways or left for action in self._stop(slot, now)]

    def _gone(self, slot: ProcessSlot) -> list[Action]:
        slot.phase = Phase.STOPPED
        if not self.stopping:
            del self.slots[slot.name]
        return [Say(f"{slot.name}: stopped")]

    def _publish(self, role: Role) -> list[Action]:
        if role is Role.GATEWAY:
            return []
        slots = self.slots.values()
        workers = (slot.announcement for slot in slots if slot.role is role and slot.phase is Phase.READY)
        return [Publish(role, tuple(worker for worker in workers if worker is not None))]

    def _roles_without_ready(self) -> set[Role]:
        ready = {slot.role for slot in self.slots.values() if slot.phase is Phase.READY}
        return {slot.role for slot in self.slots.values()} - ready

    def _missing(self) -> str:
        waiting = [slot.name for slot in self.slots.values() if slot.phase is not Phase.READY]
        return f"{', '.join(waiting)} not ready" if waiting else "the gateway has linked no fitting pair"


def _describe_exit(end: Exit, kill_reason: str) -> str:
    """The end of a process in words, with its last log line as what it is. `kill_reason`: empty: Baton did not kill
    it."""
    if end.status >= 0:
        text = f"ended with status {end.status}"
    elif kill_reason:
        text = f"killed by Baton: it {kill_reason}"
    else:
        text = f"killed by {signal_name(-end.status)}, not by Baton" + _KILLERS.get(-end.status, "")
    if not end.last_line:
        return text
    is_old = end.line_age_s is not None and end.line_age_s >= OLD_LINE_S
    age = f", {end.line_age_s:.0f} s old" if is_old else ""
    return f"{text}; its last log line{age}: {end.last_line}"


_KILLERS: dict[int, str] = {
    signal.SIGKILL: ": the kernel's OOM killer? (see dmesg)",
    signal.SIGSEGV: ": it crashed in native code",
    signal.SIGABRT: ": it crashed in native code",
    signal.SIGBUS: ": is the disk or /dev/shm full?",
    signal.SIGILL: ": this CPU lacks an instruction that it needs",
}
"""The usual causes of signals that Baton did not send."""


def signal_name(number: int) -> str:
    """The name of a signal, also of one that has none in Python."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
