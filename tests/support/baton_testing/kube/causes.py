"""Causes for which a deployment does not serve, each planted in a cluster in memory, and what its top line must say.

Statuses and messages are those of Kubernetes' own components: scheduler, kubelet, controllers, admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from baton_operator.kube.kinds import DEPLOYMENTS, JOBS, PODS, POOLS, SERVICES
from baton_operator.kube.kube_api import Forbidden, KubeError
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL
from baton_testing.kube.cluster import Affliction, is_ready
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual

WITHIN_S, SETTLED_S = 30.0, 120.0
WORKER, GATEWAY, FETCH = ("prefill", "decode"), ("gateway",), (FETCH_ROLE,)
HUB: dict[str, Any] = {"model__source": "hf://org/model@" + "a" * 40}
MORE_MEMORY: dict[str, Any] = {"decode__resources": {"memory": "2Gi"}}
LOOSE = Promise(floor=0, most=64)


@dataclass(frozen=True, slots=True)
class Planted:
    """One cause."""

    name: str
    reason: str
    """What the column must say, within WITHIN_S."""
    plant: Callable[[World], Awaitable[None]]
    lift: Callable[[World], None] | None = None
    """Takes the cause away; then the deployment must serve. None: it is not tried."""
    is_ready: bool = False
    """Whether requests are served all the same."""
    says: str = ""
    """What the message must hold."""
    is_running: bool = False
    """Planted in a deployment that serves, not in a new one."""


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one."""

    reason: str
    after_s: float
    """From planting to the right reason, or to giving up."""
    ready: str
    message: str
    available: bool
    """Whether a request would have been answered then."""
    lies: tuple[str, ...]
    """What was said against the truth for longer than it takes to see it."""
    recovered: bool


def play(cause: Planted) -> Told:
    """One run, on virtual time."""

    async def main() -> Told:
        world = World(promise=LOOSE)
        world.start()
        if cause.is_running:
            world.user_applies()
            await _until(lambda: _summary(world) == "Serving", SETTLED_S)
        began = world.clock()
        await cause.plant(world)
        await _until(lambda: _summary(world) == cause.reason, WITHIN_S)
        after_s = world.clock() - began
        lies = [] if await _agrees(world) else [f"{_summary(world)} while available is {available(world)}"]
        ready, reason, message = _ready(world)
        told = Told(_summary(world), after_s, ready, f"{reason}: {message}", available(world), tuple(lies), True)
        if cause.lift is not None:
            cause.lift(world)
            world.cluster.nudge()
            await _until(lambda: _summary(world) == "Serving", 2 * SETTLED_S)
            told = replace(told, recovered=_summary(world) == "Serving")
        await world.end()
        return told

    return run_virtual(main())


async def _agrees(world: World) -> bool:
    """Whether Ready is the truth within the time in which readiness settles (15 s) and a pass is made."""
    for _ in range(40):
        if (_ready(world)[0] == "True") == available(world):
            return True
        await asyncio.sleep(1.0)
    return False


def available(world: World) -> bool:
    """Whether a request would be answered, counted Pod by Pod."""
    gateways = [pod for pod in world.store.all(PODS, SPACE) if _role(pod) in GATEWAY and is_ready(pod)]
    return bool(gateways) and all(world.usable().values())


async def _until(holds: Callable[[], bool], within_s: float) -> None:
    for _ in range(int(2 * within_s)):
        if holds():
            return
        await asyncio.sleep(0.5)


def _status(world: World) -> Json:
    live = world.store.peek(DEPLOYMENTS, SPACE, NAME)
    found: Json = {} if live is None else live.get("status", {})
    return found


def _summary(world: World) -> str:
    return str(_status(world).get("summary", ""))


def _ready(world: World) -> tuple[str, str, str]:
    for each in _status(world).get("conditions", ()):
        if each["type"] == "Ready":
            return each["status"], each["reason"], each["message"]
    return "", "", ""


def _role(body: Json) -> str:
    return str(body["metadata"].get("labels", {}).get(ROLE_LABEL, ""))


# How causes are planted


@dataclass(frozen=True, slots=True)
class PodsAfflicted:
    """Plants what a scheduler or a kubelet would say about new Pods of these roles."""

    roles: tuple[str, ...]
    affliction: Affliction
    fields: dict[str, Any]

    async def __call__(self, world: World) -> None:
        world.cluster.weather.afflicts = self.of
        world.user_applies(**self.fields)

    def of(self, pod: Json) -> Affliction | None:
        return self.affliction if _role(pod) in self.roles else None


def _pods(roles: tuple[str, ...], affliction: Affliction, **fields: Any) -> PodsAfflicted:
    return PodsAfflicted(roles, affliction, fields)


def _refusals(roles: tuple[str, ...], text: str, **fields: Any) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.cluster.weather.refuses = lambda deployment: text if _role(deployment) in roles else ""
        world.user_applies(**fields)

    return plant


def _jobs(affliction: Affliction) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.cluster.weather.job = affliction
        world.user_applies(**HUB)

    return plant


def _fetches(said: str) -> Callable[[World], Awaitable[None]]:
    """A fetch that runs, of which the kubelet tells what its probe said."""

    async def plant(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await _until(lambda: any(True for _ in world.store.all(JOBS, SPACE)), WITHIN_S)
        world.fetch_tells(said)

    return plant


def _calls(part: str, error: KubeError) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.kube.refuses = lambda what: error if part in what else None
        world.user_applies()

    return plant


def _edits(loose: bool = True, **fields: Any) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.store.kinds.is_strict = not loose
        world.user_applies(**fields)
        world.store.kinds.is_strict = True

    return plant


def _clear(world: World) -> None:
    weather = world.cluster.weather
    weather.afflicts, weather.refuses, weather.job = (lambda pod: None), (lambda deployment: ""), None
    weather.room = None
    world.kube.refuses = lambda what: None


def _fixed(world: World) -> None:
    _clear(world)
    world.user_applies()


def _scheduled(yes: bool, reason: str = "", message: str = "") -> Json:
    told: Json = {"type": "PodScheduled", "status": str(yes)}
    return told | ({} if yes else {"reason": reason, "message": message})


def _unplaced(message: str) -> Affliction:
    return Affliction({"phase": "Pending", "conditions": [_scheduled(False, "Unschedulable", message)]})


def _gated() -> Affliction:
    text = "Scheduling is blocked due to non-empty scheduling gates"
    return Affliction({"phase": "Pending", "conditions": [_scheduled(False, "SchedulingGated", text)]})


def _waiting(reason: str, message: str = "", event: tuple[str, str] | None = None, warns: bool = True) -> Affliction:
    state: Json = {"waiting": {"reason": reason, "message": message}}
    container: Json = {"name": "c", "image": "registry.example.com/baton", "restartCount": 0, "state": state}
    conditions = [_scheduled(True), {"type": "Ready", "status": "False"}]
    return Affliction({"phase": "Pending", "conditions": conditions, "containerStatuses": [container]}, event, warns)


def _creating(reason: str, message: str, warns: bool = True) -> Affliction:
    return _waiting("ContainerCreating", event=(reason, message), warns=warns)


def _crashing(code: int, reason: str, message: str) -> Affliction:
    ended: Json = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    container: Json = {"name": "c", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    conditions = [_scheduled(True), {"type": "Ready", "status": "False"}]
    status: Json = {"phase": "Running", "conditions": conditions}
    return Affliction({**status, "containerStatuses": [container | {"lastState": ended}]})


async def _name_taken(world: World) -> None:
    service: Json = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}
    service["metadata"] = {"name": f"{NAME}-gateway", "namespace": SPACE}
    world.store.create(SERVICES, service, "somebody")
    world.user_applies()


async def _no_room(world: World) -> None:
    world.cluster.weather.room = 4
    world.user_applies(**MORE_MEMORY)


async def _gateways_gone(world: World) -> None:
    world.cluster.weather.afflicts = lambda pod: _unplaced("0/1 nodes are available: 1 node(s) were unschedulable.")
    for pod in [pod for pod in world.store.all(PODS, SPACE) if _role(pod) in GATEWAY]:
        world.user_deletes(PODS, pod["metadata"]["name"])


async def _scaled_to_zero(world: World) -> None:
    none = {"min": 0, "max": 1}
    world.user_applies(autoscaling={"mode": "Off"}, prefill__replicas=none, decode__replicas=none)
    for role in WORKER:
        world.user_scales(POOLS, f"{NAME}-{role}", 0)


def _new_template(affliction: Affliction) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.cluster.weather.afflicts = lambda pod: affliction if "2Gi" in str(pod["spec"]) else None
        world.user_applies(**MORE_MEMORY)

    return plant


NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."
NO_CPU = "0/3 nodes are available: 3 Insufficient cpu."
TAINT = "0/3 nodes are available: 3 node(s) had untolerated taint {dedicated: infra}."
SELECTOR = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
CORDONED = "0/1 nodes are available: 1 node(s) were unschedulable."
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
SECURITY = 'pods "chat-decode-1" is forbidden: violates PodSecurity "restricted:latest": seccompProfile'
WEBHOOK = 'Internal error occurred: failed calling webhook "pods.example.com": connection refused'
DENIED = 'admission webhook "policy.example.com" denied the request: images must be signed'
LIMITS = 'pods "chat-decode-1" is forbidden: maximum memory usage per Container is 1Gi, but limit is 4Gi'
PRIORITY = 'pods "chat-decode-1" is forbidden: no PriorityClass with name high was found'
RUNTIME = 'pods "chat-decode-1" is forbidden: pod rejected: RuntimeClass "kata" not found'
ACCOUNT = 'error looking up service account team/chat-decode: serviceaccount "chat-decode" not found'
QUOTA = 'pods "chat-decode-1" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1, used: 8, limited: 8'
ENDING = 'pods "x" is forbidden: unable to create new content in namespace team because it is being terminated'
FAILED: Json = {
    "conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 3"}]
}
REFUSED_POD: Json = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}

CAUSES = (
    Planted("keys Secret", "MissingSecret",
            _pods(WORKER, _creating("FailedMount", 'MountVolume.SetUp failed: secret "chat-keys" not found')), _clear,
            says="chat-keys"),
    Planted("TLS Secret", "MissingSecret",
            _pods(GATEWAY, _creating("FailedMount", 'MountVolume.SetUp failed for "tls" : secret "cert" not found')),
            _clear, says="cert"),
    Planted("ConfigMap", "MissingConfigMap",
            _pods(WORKER, _creating("FailedMount", 'MountVolume.SetUp failed : configmap "ca" not found')), _clear),
    Planted("Secret of the environment", "MissingSecret",
            _pods(WORKER, _waiting("CreateContainerConfigError", 'secret "token" not found')), _clear),
    Planted("claim not there", "MissingClaim",
            _pods(WORKER, _unplaced('0/3 nodes are available: persistentvolumeclaim "models" not found.')), _clear,
            says="models"),
    Planted("claim not bound", "MissingClaim", _pods(WORKER, _unplaced(UNBOUND)), _clear, says="the claim models is"),
    Planted("volume elsewhere", "MissingClaim",
            _pods(WORKER, _unplaced("0/3 nodes are available: 3 node(s) had volume node affinity conflict.")), _clear),
    Planted("resource claim", "MissingResourceClaim",
            _pods(WORKER, _unplaced('0/3 nodes are available: resourceclaim "gpu" not found.')), _clear),
    Planted("worker image", "ImagePull", _pods(WORKER, _waiting("ImagePullBackOff", "Back-off")), _clear),
    Planted("gateway image", "ImagePull", _pods(GATEWAY, _waiting("ErrImagePull", "401")), _clear, says="gateway"),
    Planted("image name", "ImagePull", _pods(WORKER, _waiting("InvalidImageName", "bad")), _clear),
    Planted("no accelerators", "InsufficientAccelerators", _pods(WORKER, _unplaced(NO_GPU)), _clear),
    Planted("no CPUs", "Unschedulable", _pods(WORKER, _unplaced(NO_CPU)), _clear, says="Insufficient cpu"),
    Planted("taint", "Unschedulable", _pods(WORKER, _unplaced(TAINT)), _clear, says="taint"),
    Planted("selector", "Unschedulable", _pods(("decode",), _unplaced(SELECTOR)), _clear, says="decode"),
    Planted("gateway on a cordoned node", "Unschedulable", _pods(GATEWAY, _unplaced(CORDONED)), _clear),
    Planted("Kueue", "QueuedByKueue", _pods(WORKER, _gated(), prefill__queue="gpus", decode__queue="gpus"), _clear,
            says="gpus"),
    Planted("another gate", "SchedulingGated", _pods(WORKER, _gated()), _clear),
    Planted("quota", "QuotaExceeded", _refusals(WORKER, QUOTA), _clear),
    Planted("Pod Security", "PodSecurity", _refusals(WORKER, SECURITY), _clear),
    Planted("Pod Security of gateways", "PodSecurity", _refusals(GATEWAY, SECURITY), _clear),
    Planted("webhook for Pods is down", "WebhookDown", _refusals(WORKER, WEBHOOK), _clear),
    Planted("webhook says no", "AdmissionDenied", _refusals(WORKER, DENIED), _clear, says="signed"),
    Planted("LimitRange", "OutsideLimitRange", _refusals(WORKER, LIMITS), _clear),
    Planted("PriorityClass", "MissingPriorityClass", _refusals(WORKER, PRIORITY), _clear),
    Planted("RuntimeClass", "MissingRuntimeClass", _refusals(WORKER, RUNTIME), _clear),
    Planted("ServiceAccount", "MissingServiceAccount", _refusals(WORKER, ACCOUNT), _clear),
    Planted("wrong model", "WorkersFail",
            _pods(WORKER, _crashing(2, "Error", "argument --model: /m: no such directory")), _clear,
            says="no such directory"),
    Planted("out of memory", "WorkersFail", _pods(("decode",), _crashing(137, "OOMKilled", "")), _clear,
            says="OOMKilled"),
    Planted("gateway crashes", "GatewayFails", _pods(GATEWAY, _crashing(2, "Error", "unrecognized")), _clear),
    Planted("runs as root", "ContainerConfig",
            _pods(WORKER, _waiting("CreateContainerConfigError", "container has runAsNonRoot and image runs as root")),
            _clear),
    Planted("no network", "SandboxFails",
            _pods(WORKER, _creating("FailedCreatePodSandBox", "plugin type=calico failed")), _clear),
    Planted("mount hangs", "VolumeFails",
            _pods(WORKER, _creating("FailedMount", "mount.nfs: Connection timed out")), _clear),
    Planted("attached elsewhere", "VolumeFails",
            _pods(WORKER, _creating("FailedAttachVolume", "Multi-Attach error for volume pvc-1")), _clear),
    Planted("slow pull", "PullingImage",
            _pods(WORKER, _creating("Pulling", 'Pulling image "registry.example.com/baton"', warns=False)), _clear),
    Planted("a node refuses", "NodeRefuses", _pods(WORKER, Affliction(REFUSED_POD))),
    Planted("name taken", "NameTaken", _name_taken),
    Planted("no permission", "Forbidden",
            _calls("apply networkpolicies", Forbidden("networkpolicies is forbidden: cannot patch")), _clear),
    Planted("webhook for our objects is down", "WebhookDown",
            _calls("apply deployments/chat-gateway", Forbidden(WEBHOOK)), _clear),
    Planted("namespace ends", "NamespaceTerminating", _calls("apply services", Forbidden(ENDING)), _clear),
    Planted("invalid spec", "InvalidSpec",
            _edits(rollout={"maxSurge": 0, "maxUnavailable": 0, "canary": 0, "paused": False}), _fixed),
    Planted("unsupported", "Unsupported", _edits(model__source="file://relative"), _fixed, says="spec.model.source"),
    Planted("not allowed", "NotAllowed", _edits(decode__priorityClassName="system-node-critical"), _fixed,
            says="priorityClassName"),
    Planted("model is fetched", "FetchingModel", _jobs(Affliction({"active": 1, "failed": 2})), _clear,
            says="try 3 of 13"),
    Planted("fetch in percent", "FetchingModel", _fetches("fetched 13207024435 of 64961380352 bytes"), _clear,
            says="the model is being fetched: 20 % (12.3 of 60.5 GiB)"),
    Planted("fetch of unknown size", "FetchingModel", _fetches("fetched 13207024435 bytes"), _clear,
            says="the model is being fetched: 12.3 GiB so far"),
    Planted("fetch fails", "ModelFetchFailed", _jobs(Affliction(FAILED)), says="exit code 3"),
    Planted("fetch without quota", "QuotaExceeded", _jobs(Affliction({}, ("FailedCreate", QUOTA))), _clear),
    Planted("fetch refused by Pod Security", "PodSecurity", _jobs(Affliction({}, ("FailedCreate", SECURITY))), _clear),
    Planted("new template crashes", "NewTemplateFails",
            _new_template(_crashing(2, "Error", "bad flag")), _fixed, is_ready=True, is_running=True),
    Planted("new template without image", "ImagePull",
            _new_template(_waiting("ImagePullBackOff")), _fixed, is_ready=True, is_running=True),
    Planted("new template without Secret", "MissingSecret",
            _new_template(_creating("FailedMount", 'secret "ca" not found')), _fixed, is_ready=True, is_running=True),
    Planted("no room for the surge", "Unschedulable", _no_room, _clear, is_ready=True, is_running=True),
    Planted("gateways gone", "Unschedulable", _gateways_gone, _clear, is_running=True, says="gateway"),
    Planted("refused while it serves", "Unsupported", _edits(model__source="file://relative"), _fixed, is_ready=True,
            is_running=True),
    Planted("at zero and nobody wakes it", "ScaledToZero", _scaled_to_zero, is_running=True),
)  # fmt: skip
