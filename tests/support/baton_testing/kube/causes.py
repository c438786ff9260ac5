"""Causes for which a deployment does not serve, each planted in a cluster in memory, and what its top line must say.

Statuses and messages are those of Kubernetes' own components: scheduler, kubelet, controllers, admission.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from baton_operator.kube.kinds import AUTOSCALERS, JOBS, PODS, POOLS, ROUTES, SERVICES
from baton_operator.kube.kube_api import Forbidden, KubeError
from baton_operator.objects.metadata import FETCH_ROLE
from baton_operator.passes.diagnosis import MEASURED_WITHIN_S
from baton_testing.kube.clock import stamp
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.planted_causes import WITHIN_S, Planted, role_of, until
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, World

WORKER, GATEWAY, FETCH = ("prefill", "decode"), ("gateway",), (FETCH_ROLE,)
HUB: dict[str, Any] = {"model__source": "hf://org/model@" + "a" * 40}
MORE_MEMORY: dict[str, Any] = {"decode__resources": {"memory": "2Gi"}}


@dataclass(frozen=True, slots=True)
class PodsAfflicted:
    """Plants the words of a scheduler or a kubelet about new Pods of some roles."""

    roles: tuple[str, ...]
    affliction: Affliction
    fields: dict[str, Any]

    async def __call__(self, world: World) -> None:
        world.cluster.weather.afflicts = self.of
        world.user_applies(**self.fields)

    def of(self, pod: Json) -> Affliction | None:
        return self.affliction if role_of(pod) in self.roles else None


def _pods(roles: tuple[str, ...], affliction: Affliction, **fields: Any) -> PodsAfflicted:
    return PodsAfflicted(roles, affliction, fields)


def refusals(roles: tuple[str, ...], text: str, **fields: Any) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.cluster.weather.refuses = lambda deployment: text if role_of(deployment) in roles else ""
        world.user_applies(**fields)

    return plant


def jobs(affliction: Affliction) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.cluster.weather.job = affliction
        world.user_applies(**HUB)

    return plant


def _fetches(progress: str) -> Callable[[World], Awaitable[None]]:
    """A running fetch whose probe's message the kubelet reports."""

    async def plant(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await until(lambda: any(True for _ in world.store.all(JOBS, SPACE)), WITHIN_S)
        world.fetch_tells(progress)

    return plant


def writes(part: str, error: KubeError, **fields: Any) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.kube.refuses = lambda what: error if what.startswith(("create ", "apply ")) and part in what else None
        world.user_applies(**(HUB if "persistentvolumeclaims" in part else fields))

    return plant


def _edits(loose: bool = True, **fields: Any) -> Callable[[World], Awaitable[None]]:
    async def plant(world: World) -> None:
        world.store.kinds.is_strict = not loose
        world.user_applies(**fields)
        world.store.kinds.is_strict = True

    return plant


def clear(world: World) -> None:
    weather = world.cluster.weather
    weather.afflicts, weather.refuses, weather.job = (lambda pod: None), (lambda deployment: ""), None
    weather.room = None
    world.kube.refuses = lambda what: None


def _fixed(world: World) -> None:
    clear(world)
    world.user_applies()


def _scheduled(yes: bool, reason: str = "", message: str = "") -> Json:
    scheduled: Json = {"type": "PodScheduled", "status": str(yes)}
    return scheduled | ({} if yes else {"reason": reason, "message": message})


def _unplaced(message: str) -> Affliction:
    return Affliction({"phase": "Pending", "conditions": [_scheduled(False, "Unschedulable", message)]})


def _gated() -> Affliction:
    text = "Scheduling is blocked due to non-empty scheduling gates"
    return Affliction({"phase": "Pending", "conditions": [_scheduled(False, "SchedulingGated", text)]})


def waiting(reason: str, message: str = "", event: tuple[str, str] | None = None, warns: bool = True) -> Affliction:
    state: Json = {"waiting": {"reason": reason, "message": message}}
    container: Json = {"name": "c", "image": "registry.example.com/baton", "restartCount": 0, "state": state}
    conditions = [_scheduled(True), {"type": "Ready", "status": "False"}]
    return Affliction({"phase": "Pending", "conditions": conditions, "containerStatuses": [container]}, event, warns)


def _creating(reason: str, message: str, warns: bool = True) -> Affliction:
    return waiting("ContainerCreating", event=(reason, message), warns=warns)


def _crashing(code: int, reason: str, message: str) -> Affliction:
    ended: Json = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    container: Json = {"name": "c", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    conditions = [_scheduled(True), {"type": "Ready", "status": "False"}]
    status: Json = {"phase": "Running", "conditions": conditions}
    return Affliction({**status, "containerStatuses": [container | {"lastState": ended}]})


def _tried_again(code: int, message: str) -> Affliction:
    """A process that has ended once and runs again, without being Ready yet."""
    ended: Json = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    container: Json = {"name": "c", "restartCount": 1, "ready": False, "state": {"running": {}}, "lastState": ended}
    conditions = [_scheduled(True), {"type": "Ready", "status": "False"}]
    return Affliction({"phase": "Running", "conditions": conditions, "containerStatuses": [container]})


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
    for pod in [pod for pod in world.store.all(PODS, SPACE) if role_of(pod) in GATEWAY]:
        world.user_deletes(PODS, pod["metadata"]["name"])


async def _scaled_to_zero(world: World) -> None:
    none = {"min": 0, "max": 1}
    world.user_applies(autoscaling={"mode": "Off"}, prefill__replicas=none, decode__replicas=none)
    for role in WORKER:
        world.user_scales(POOLS, f"{NAME}-{role}", 0)


def _unready(reason: str, message: str) -> Affliction:
    """A process that runs and is not Ready, and the Event that says why."""
    container: Json = {"name": "c", "restartCount": 0, "ready": False, "started": True, "state": {"running": {}}}
    conditions = [_scheduled(True), {"type": "Ready", "status": "False"}]
    status: Json = {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}
    return Affliction(status, (reason, message))


def _ended(reason: str, message: str) -> Affliction:
    return Affliction({"phase": "Failed", "reason": reason, "message": message})


def fetch_pod(affliction: Affliction) -> Callable[[World], Awaitable[None]]:
    """The fetch Job has a Pod, and something is wrong with it."""

    async def plant(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await until(lambda: any(True for _ in world.store.all(JOBS, SPACE)), WITHIN_S)
        world.cluster.weather.afflicts = lambda pod: affliction if role_of(pod) in FETCH else None
        world.fetch_pod_is(affliction)

    return plant


async def _cannot_measure(world: World) -> None:
    world.user_applies(gateway={"autoscaling": {"max": 4}})
    name = f"{NAME}-gateway"
    await until(lambda: world.store.peek(AUTOSCALERS, SPACE, name) is not None, WITHIN_S)
    idle: Json = {"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric"}
    idle |= {"message": "no metrics returned", "lastTransitionTime": stamp(world.clock() - MEASURED_WITHIN_S)}
    world.store.set_status(AUTOSCALERS, SPACE, name, {"conditions": [idle]})


def _can_measure(world: World) -> None:
    active = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}
    world.store.set_status(AUTOSCALERS, SPACE, f"{NAME}-gateway", {"conditions": [active]})


async def _route_refused(world: World) -> None:
    world.user_applies(gateway={"route": {"parent": "edge"}, "openAccess": True})
    await until(lambda: world.store.peek(ROUTES, SPACE, f"{NAME}-gateway") is not None, WITHIN_S)
    _route_is(world, "False", "NotAllowedByListeners")


def _route_is(world: World, status: str, reason: str) -> None:
    accepted: Json = {"type": "Accepted", "status": status, "reason": reason, "message": "", "observedGeneration": 1}
    parent: Json = {"parentRef": {"name": "edge"}, "controllerName": "example.com/edge", "conditions": [accepted]}
    world.store.set_status(ROUTES, SPACE, f"{NAME}-gateway", {"parents": [parent]})


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
NO_PAGES = "0/3 nodes are available: 3 Insufficient hugepages-2Mi."
NO_NEIGHBOUR = "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
NO_SPREAD = "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints."
FULL = "0/3 nodes are available: 3 Too many pods."
NO_DEVICE = "0/3 nodes are available: 3 cannot allocate all claims."
STORAGE_QUOTA = (
    'persistentvolumeclaims "chat-models" is forbidden: exceeded quota: storage, requested: 100Gi, limited: 50Gi'
)
STORAGE_LIMITS = (
    'persistentvolumeclaims "chat-models" is forbidden: maximum storage usage per PersistentVolumeClaim is 50Gi'
)
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
            _pods(WORKER, _creating("FailedMount", 'MountVolume.SetUp failed: secret "chat-keys" not found')), clear,
            says="chat-keys"),
    Planted("TLS Secret", "MissingSecret",
            _pods(GATEWAY, _creating("FailedMount", 'MountVolume.SetUp failed for "tls" : secret "cert" not found')),
            clear, says="cert"),
    Planted("ConfigMap", "MissingConfigMap",
            _pods(WORKER, _creating("FailedMount", 'MountVolume.SetUp failed : configmap "ca" not found')), clear),
    Planted("Secret of the environment", "MissingSecret",
            _pods(WORKER, waiting("CreateContainerConfigError", 'secret "token" not found')), clear),
    Planted("claim not there", "MissingClaim",
            _pods(WORKER, _unplaced('0/3 nodes are available: persistentvolumeclaim "models" not found.')), clear,
            says="models"),
    Planted("claim not bound", "MissingClaim", _pods(WORKER, _unplaced(UNBOUND)), clear, says="the claim models is"),
    Planted("volume elsewhere", "MissingClaim",
            _pods(WORKER, _unplaced("0/3 nodes are available: 3 node(s) had volume node affinity conflict.")), clear),
    Planted("resource claim", "MissingResourceClaim",
            _pods(WORKER, _unplaced('0/3 nodes are available: resourceclaim "gpu" not found.')), clear),
    Planted("worker image", "ImagePull", _pods(WORKER, waiting("ImagePullBackOff", "Back-off")), clear),
    Planted("gateway image", "ImagePull", _pods(GATEWAY, waiting("ErrImagePull", "401")), clear, says="gateway"),
    Planted("image name", "ImagePull", _pods(WORKER, waiting("InvalidImageName", "bad")), clear),
    Planted("no accelerators", "InsufficientAccelerators", _pods(WORKER, _unplaced(NO_GPU)), clear),
    Planted("no CPUs", "Unschedulable", _pods(WORKER, _unplaced(NO_CPU)), clear, says="Insufficient cpu"),
    Planted("taint", "Unschedulable", _pods(WORKER, _unplaced(TAINT)), clear, says="taint"),
    Planted("selector", "Unschedulable", _pods(("decode",), _unplaced(SELECTOR)), clear, says="decode"),
    Planted("gateway on a cordoned node", "Unschedulable", _pods(GATEWAY, _unplaced(CORDONED)), clear),
    Planted("Kueue", "QueuedByKueue", _pods(WORKER, _gated(), prefill__queue="gpus", decode__queue="gpus"), clear,
            says="gpus"),
    Planted("another gate", "SchedulingGated", _pods(WORKER, _gated()), clear),
    Planted("quota", "QuotaExceeded", refusals(WORKER, QUOTA), clear),
    Planted("Pod Security", "PodSecurity", refusals(WORKER, SECURITY), clear),
    Planted("Pod Security of gateways", "PodSecurity", refusals(GATEWAY, SECURITY), clear),
    Planted("webhook for Pods is down", "WebhookDown", refusals(WORKER, WEBHOOK), clear),
    Planted("webhook says no", "AdmissionDenied", refusals(WORKER, DENIED), clear, says="signed"),
    Planted("LimitRange", "OutsideLimitRange", refusals(WORKER, LIMITS), clear),
    Planted("PriorityClass", "MissingPriorityClass", refusals(WORKER, PRIORITY), clear),
    Planted("RuntimeClass", "MissingRuntimeClass", refusals(WORKER, RUNTIME), clear),
    Planted("ServiceAccount", "MissingServiceAccount", refusals(WORKER, ACCOUNT), clear),
    Planted("wrong model", "WorkersFail",
            _pods(WORKER, _crashing(2, "Error", "argument --model: /m: no such directory")), clear,
            says="no such directory"),
    Planted("wrong model, tried again", "WorkersFail",
            _pods(WORKER, _tried_again(2, "argument --model: /m: no such directory")), clear, says="no such dir"),
    Planted("gateway tried again", "GatewayFails", _pods(GATEWAY, _tried_again(2, "unrecognized")), clear),
    Planted("out of memory", "WorkersFail", _pods(("decode",), _crashing(137, "OOMKilled", "")), clear,
            says="OOMKilled"),
    Planted("gateway crashes", "GatewayFails", _pods(GATEWAY, _crashing(2, "Error", "unrecognized")), clear),
    Planted("runs as root", "ContainerConfig",
            _pods(WORKER, waiting("CreateContainerConfigError", "container has runAsNonRoot and image runs as root")),
            clear),
    Planted("no network", "SandboxFails",
            _pods(WORKER, _creating("FailedCreatePodSandBox", "plugin type=calico failed")), clear),
    Planted("mount hangs", "VolumeFails",
            _pods(WORKER, _creating("FailedMount", "mount.nfs: Connection timed out")), clear),
    Planted("attached elsewhere", "VolumeFails",
            _pods(WORKER, _creating("FailedAttachVolume", "Multi-Attach error for volume pvc-1")), clear),
    Planted("slow pull", "PullingImage",
            _pods(WORKER, _creating("Pulling", 'Pulling image "registry.example.com/baton"', warns=False)), clear),
    Planted("worker's probe fails", "ProbeFails",
            _pods(WORKER, _unready("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")),
            clear, says="statuscode: 503"),
    Planted("gateway's probe fails", "ProbeFails",
            _pods(GATEWAY, _unready("Unhealthy", "Readiness probe failed: context deadline exceeded")), clear,
            says="gateway"),
    Planted("node is lost", "NodeNotReady", _pods(WORKER, _unready("NodeNotReady", "Node is not ready")), clear),
    Planted("liveness kills", "WorkersFail",
            _pods(("decode",), _crashing(137, "Error", "no progress with work queued")), clear, says="no progress"),
    Planted("unknown flag", "WorkersFail",
            _pods(WORKER, _crashing(2, "Error", "unrecognized arguments: --landing-byte=1")), clear,
            says="unrecognized arguments"),
    Planted("wrong certificate", "GatewayFails", _pods(GATEWAY, _crashing(1, "Error", "--tls: no certificate")), clear,
            says="--tls"),
    Planted("security of containers", "ContainerConfig",
            _pods(WORKER, waiting("CreateContainerError", "cannot apply the seccomp profile")), clear,
            says="seccomp"),
    Planted("evicted", "NodeRefuses",
            _pods(WORKER, _ended("Evicted", "The node was low on resource: ephemeral-storage.")),
            says="low on resource"),
    Planted("preempted", "NodeRefuses",
            _pods(GATEWAY, _ended("Preempting", "Preempted in order to admit critical pod")), says="critical pod"),
    Planted("no huge pages", "Unschedulable", _pods(WORKER, _unplaced(NO_PAGES)), clear, says="hugepages-2Mi"),
    Planted("nobody to be near to", "Unschedulable", _pods(WORKER, _unplaced(NO_NEIGHBOUR)), clear, says="affinity"),
    Planted("no even spread", "Unschedulable", _pods(GATEWAY, _unplaced(NO_SPREAD)), clear, says="topology spread"),
    Planted("nodes are full of Pods", "Unschedulable", _pods(WORKER, _unplaced(FULL)), clear, says="Too many pods"),
    Planted("devices cannot be allocated", "Unschedulable", _pods(WORKER, _unplaced(NO_DEVICE)), clear,
            says="cannot allocate"),
    Planted("a node refuses", "NodeRefuses", _pods(WORKER, Affliction(REFUSED_POD))),
    Planted("name taken", "NameTaken", _name_taken),
    Planted("no permission", "Forbidden",
            writes("networkpolicies", Forbidden("networkpolicies is forbidden: cannot patch")), clear),
    Planted("webhook for our objects is down", "WebhookDown",
            writes("deployments/chat-gateway", Forbidden(WEBHOOK)), clear),
    Planted("autoscaler refused", "Forbidden",
            writes("horizontalpodautoscalers", Forbidden("horizontalpodautoscalers.autoscaling is forbidden"),
                   gateway={"autoscaling": {"max": 4}}), clear, says="horizontalpodautoscalers"),
    Planted("autoscaler denied by a webhook", "AdmissionDenied",
            writes("horizontalpodautoscalers", Forbidden(DENIED), gateway={"autoscaling": {"max": 4}}), clear),
    Planted("autoscaler without metrics", "GatewayNotScaled", _cannot_measure, _can_measure, is_ready=True,
            is_running=True),
    Planted("route refused", "RouteNotAccepted", _route_refused,
            lambda world: _route_is(world, "True", "Accepted"), is_ready=True, is_running=True),
    Planted("flag of Baton's own", "InvalidSpec", _edits(decode__arguments=[{"name": "keys", "value": "/tmp"}]), _fixed,
            says="spec.decode.arguments[0].name"),
    Planted("namespace ends", "NamespaceTerminating", writes("services", Forbidden(ENDING)), clear),
    Planted("invalid spec", "InvalidSpec",
            _edits(rollout={"maxSurge": 0, "maxUnavailable": 0, "canary": 0, "paused": False}), _fixed),
    Planted("unsupported", "Unsupported", _edits(model__source="file://relative"), _fixed, says="spec.model.source"),
    Planted("not allowed", "NotAllowed", _edits(decode__priorityClassName="system-node-critical"), _fixed,
            says="priorityClassName"),
    Planted("model is fetched", "FetchingModel", jobs(Affliction({"active": 1, "failed": 2})), clear,
            says="try 3 of 13"),
    Planted("fetch in percent", "FetchingModel", _fetches("fetched 13207024435 of 64961380352 bytes"), clear,
            says="the model is being fetched: 20 % (12.3 of 60.5 GiB)"),
    Planted("fetch of unknown size", "FetchingModel", _fetches("fetched 13207024435 bytes"), clear,
            says="the model is being fetched: 12.3 GiB so far"),
    Planted("fetch without its claim", "MissingClaim", fetch_pod(_unplaced(UNBOUND)), clear, says="chat-models"),
    Planted("fetch without image", "ImagePull", fetch_pod(waiting("ImagePullBackOff")), clear, says="the fetch of"),
    Planted("fetch without credentials", "MissingSecret",
            fetch_pod(_creating("FailedMount", 'MountVolume.SetUp failed : secret "hub" not found')), clear,
            says="hub"),
    Planted("fetch without a node", "Unschedulable", fetch_pod(_unplaced(NO_CPU)), clear, says="Insufficient cpu"),
    Planted("claim without quota", "QuotaExceeded",
            writes("persistentvolumeclaims", Forbidden(STORAGE_QUOTA)), clear, says="storage"),
    Planted("claim outside its LimitRange", "OutsideLimitRange",
            writes("persistentvolumeclaims", Forbidden(STORAGE_LIMITS)), clear),
    Planted("fetch fails", "ModelFetchFailed", jobs(Affliction(FAILED)), says="exit code 3"),
    Planted("fetch without quota", "QuotaExceeded", jobs(Affliction({}, ("FailedCreate", QUOTA))), clear),
    Planted("fetch refused by Pod Security", "PodSecurity", jobs(Affliction({}, ("FailedCreate", SECURITY))), clear),
    Planted("new template crashes", "NewTemplateFails",
            _new_template(_crashing(2, "Error", "bad flag")), _fixed, is_ready=True, is_running=True),
    Planted("new template without image", "ImagePull",
            _new_template(waiting("ImagePullBackOff")), _fixed, is_ready=True, is_running=True),
    Planted("new template without Secret", "MissingSecret",
            _new_template(_creating("FailedMount", 'secret "ca" not found')), _fixed, is_ready=True, is_running=True),
    Planted("no room for the surge", "Unschedulable", _no_room, clear, is_ready=True, is_running=True),
    Planted("gateways gone", "Unschedulable", _gateways_gone, clear, is_running=True, says="gateway"),
    Planted("refused while it serves", "Unsupported", _edits(model__source="file://relative"), _fixed, is_ready=True,
            is_running=True),
    Planted("at zero and nobody wakes it", "ScaledToZero", _scaled_to_zero, is_running=True),
)  # fmt: skip
