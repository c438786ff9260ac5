"""Causes for which a model is not fetched: sources, proxies, volumes and quotas, with the words of public reports.

Last lines are those that the program writes, of this version (exit code 3) and of images before it (exit code 1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from baton_operator.kube.kinds import CLAIMS, EVENTS, JOBS
from baton_operator.kube.kube_api import Forbidden
from baton_testing.kube.causes import HUB, WORKER, clear, fetch_pod, jobs, refusals, waiting, writes
from baton_testing.kube.clock import stamp
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.planted_causes import WITHIN_S, Planted, until
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, World

LOG = "2026-11-28 10:00:00,000 INFO baton.fetch org/model: 12 files, 60.500 GiB\n2026-11-28 10:00:01,000 ERROR "
HOST = "https://huggingface.co/api/models/org/model/tree/main"
CLAIM = f"{NAME}-models"


def program_ended(code: int, message: str, at: str, reason: str = "Error") -> Json:
    """The status of a Pod whose program has ended."""
    ended: Json = {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}
    container: Json = {"name": "fetch", "restartCount": 0, "state": {"terminated": ended}}
    phase = "Failed" if code else "Succeeded"
    return {
        "phase": phase,
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [container],
    }


def job_status(failed: int, given_up: str = "", at: str = "") -> Json:
    counts: Json = {"failed": failed} | ({} if given_up else {"active": 1})
    if not given_up:
        return counts
    words = {
        "PodFailurePolicy": "Container fetch for pod team/x failed with exit code 3 matching FailJob rule at index 0",
        "BackoffLimitExceeded": "Job has reached the specified backoff limit",
        "DeadlineExceeded": "Job was active longer than specified deadline",
    }
    condition = {"type": "Failed", "status": "True", "reason": given_up, "message": words[given_up]}
    return counts | {"conditions": [condition | {"lastTransitionTime": at}]}


def tried(
    code: int, *lines: str, given_up: str = "", reason: str = "Error", failed: int | None = None
) -> Callable[[World], Awaitable[None]]:
    """A fetch whose tries ended with these last lines, one a Pod."""

    async def plant(world: World) -> None:
        at = stamp(world.clock())
        world.cluster.weather.job = Affliction(job_status(len(lines) if failed is None else failed, given_up, at))
        world.user_applies(**HUB)
        await until(lambda: any(True for _ in world.store.all(JOBS, SPACE)), WITHIN_S)
        for number, line in enumerate(lines):
            ended = program_ended(code, line, stamp(world.clock() + number), reason)
            world.fetch_pod_is(Affliction(ended), f"try{number}")

    return plant


def refused(line: str) -> Callable[[World], Awaitable[None]]:
    return tried(3, f"{LOG}baton.fetch refused: {line}\n", given_up="PodFailurePolicy")


def twice(line: str) -> Callable[[World], Awaitable[None]]:
    """Two tries of an image before this version, which fails with exit code 1."""
    return tried(1, *[f"{LOG}baton.fetch failed: {line}\n"] * 2)


def with_sidecar(code: int, line: str) -> Callable[[World], Awaitable[None]]:
    """The program has ended, and another container of its Pod runs on."""

    async def plant(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await until(lambda: any(True for _ in world.store.all(JOBS, SPACE)), WITHIN_S)
        status = program_ended(code, line, stamp(world.clock())) | {"phase": "Running"}
        proxy: Json = {"name": "istio-proxy", "restartCount": 0, "ready": True, "state": {"running": {}}}
        status["containerStatuses"] = [*status["containerStatuses"], proxy]
        world.fetch_pod_is(Affliction(status))

    return plant


def claim_waits(reason: str, message: str, phase: str = "Pending") -> Callable[[World], Awaitable[None]]:
    """The claim has no volume, and its controller says why; the Pod waits for it."""

    async def plant(world: World) -> None:
        unbound = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unbound}
        await fetch_pod(Affliction({"phase": "Pending", "conditions": [placed]}))(world)
        claim = world.store.read(CLAIMS, SPACE, CLAIM)
        world.store.set_status(CLAIMS, SPACE, CLAIM, {"phase": phase})
        event: Json = {"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message}
        event["metadata"] = {"name": f"{CLAIM}.1", "namespace": SPACE}
        event["involvedObject"] = {"kind": "PersistentVolumeClaim", "name": CLAIM, "uid": claim["metadata"]["uid"]}
        event["lastTimestamp"] = stamp(world.clock())
        world.store.create(EVENTS, event, "kcm")

    return plant


def bound(world: World) -> None:
    world.store.set_status(CLAIMS, SPACE, CLAIM, {"phase": "Bound"})
    clear(world)


def mount_fails(reason: str, message: str) -> Callable[[World], Awaitable[None]]:
    return fetch_pod(waiting("ContainerCreating", event=(reason, message)))


NO_CLASS = 'storageclass.storage.k8s.io "shared" not found'
NO_RWX = (
    'failed to provision volume with StorageClass "gp3": rpc error: code = InvalidArgument desc = Volume capabilities '
    "MULTI_NODE_MULTI_WRITER not supported. Only AccessModes[ReadWriteOnce] supported."
)
NO_ROOM = 'failed to provision volume with StorageClass "ceph": rpc error: code = ResourceExhausted desc = not enough'
MUST_SPECIFY = 'pods "x" is forbidden: failed quota: compute: must specify limits.cpu for: fetch; requests.cpu'
JOB_QUOTA = 'jobs.batch "x" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1, used: 4, limited: 4'
CLAIM_QUOTA = (
    'persistentvolumeclaims "chat-models" is forbidden: exceeded quota: claims, requested: persistentvolumeclaims=1, '
    "used: 5, limited: 5"
)
SCOPED = 'pods "x" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [high]}]'
DENIED = 'admission webhook "validate.kyverno.svc" denied the request: images must come from registry.example.com'
CA_KEY = 'MountVolume.SetUp failed for volume "ca" : references non-existent config key: ca.crt'
CA_MAP = 'MountVolume.SetUp failed for volume "ca" : configmap "corporate-ca" not found'
NO_DRIVER = (
    "MountVolume.MountDevice failed: driver name efs.csi.aws.com not found in the list of registered CSI drivers"
)
NFS_DENIED = "MountVolume.SetUp failed: mount.nfs: access denied by server while mounting 10.0.0.9:/models"
MULTI_ATTACH = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) chat-decode-1'
UNWRITABLE = (
    "/cache/.fetching-model-x.lock: Permission denied: the claim is not writable by user 10001: fsGroup is not "
    "honoured there; give the volume to this user or group (docs/fitting.md)"
)

FETCH_CAUSES = (
    Planted("gated model", "ModelFetchFailed", refused(f"{HOST}: HTTP 403: no access"), says="HTTP 403: no access"),
    Planted("wrong token", "ModelFetchFailed",
            refused(f"{HOST}: HTTP 401: credentials are missing or not accepted"), says="HTTP 401"),
    Planted("no such model", "ModelFetchFailed", refused(f"{HOST}: HTTP 404: not found"), says="HTTP 404: not found"),
    Planted("private CA", "ModelFetchFailed",
            refused(f"{HOST}: certificate verify failed: unable to get local issuer certificate"),
            says="certificate verify failed"),
    Planted("proxy wants a login", "ModelFetchFailed", refused(f"{HOST}: the proxy answers HTTP 407: it refuses"),
            says="the proxy answers HTTP 407"),
    Planted("NFS with root_squash", "ModelFetchFailed", refused(UNWRITABLE), says="fsGroup is not honoured there"),
    Planted("read-only volume", "ModelFetchFailed",
            refused("/cache/.fetching-x: Read-only file system: the volume is read-only"), says="is read-only"),
    Planted("claim too small", "ModelFetchFailed",
            refused("hf://org/model needs 12.0 GiB more than the cache has: raise spec.model.cache.size"),
            says="raise spec.model.cache.size"),
    Planted("Secret without sources", "ModelFetchFailed",
            refused("the credentials are for nothing: their Secret needs a key 'sources'"), says="a key 'sources'"),
    Planted("source is away all the time", "ModelFetchFailed",
            tried(1, *[f"{LOG}baton.fetch failed: {HOST}: HTTP 503"] * 13, given_up="BackoffLimitExceeded"),
            says="HTTP 503 (BackoffLimitExceeded)"),
    Planted("fetch hangs for a day", "ModelFetchFailed", tried(1, given_up="DeadlineExceeded"),
            says="DeadlineExceeded"),
    Planted("fetch failed once", "FetchingModel", tried(1, f"{LOG}baton.fetch failed: {HOST}: HTTP 503\n"), clear,
            says=f"try 2 of 13; last: {HOST}: HTTP 503"),
    Planted("SMB refuses chmod", "FetchingModel", twice("[Errno 1] Operation not permitted: '/cache/.fetching-x'"),
            clear, says="try 3 of 13; last: [Errno 1] Operation not permitted"),
    Planted("Lustre without flock", "FetchingModel", twice("/cache/x: No locks available"), clear,
            says="last: /cache/x: No locks available"),
    Planted("no such host", "FetchingModel",
            twice(f"{HOST}: ClientConnectorDNSError: Cannot connect to host huggingface.co:443"), clear,
            says="Cannot connect to host huggingface.co:443"),
    Planted("fetch out of memory", "FetchingModel", tried(137, "", "", reason="OOMKilled"), clear,
            says="raise spec.model.fetch.resources.memory"),
    Planted("image without the program", "FetchingModel",
            tried(1, "/usr/bin/python: No module named baton_model_fetch"), clear, says="No module named"),
    Planted("fetch ended without a word", "FetchingModel", tried(139, "", reason="Error"), clear,
            says="last: Error, exit code 139"),
    Planted("sidecar outlives the fetch", "SidecarRunning", with_sidecar(0, ""), clear, says="istio-proxy"),
    Planted("sidecar hides a failure", "SidecarRunning",
            with_sidecar(3, f"{LOG}baton.fetch refused: {HOST}: HTTP 403: no access"), clear, says="HTTP 403"),
    Planted("class of claims is not there", "MissingClaim", claim_waits("ProvisioningFailed", NO_CLASS), bound,
            says=NO_CLASS),
    Planted("class has no ReadWriteMany", "MissingClaim", claim_waits("ProvisioningFailed", NO_RWX), bound,
            says="set spec.model.cache.accessMode to ReadWriteOnce"),
    Planted("storage is used up", "MissingClaim", claim_waits("ProvisioningFailed", NO_ROOM), bound,
            says="ResourceExhausted"),
    Planted("driver of volumes is not there", "VolumeFails", mount_fails("FailedMount", NO_DRIVER), clear,
            says="efs.csi.aws.com not found"),
    Planted("NFS server denies", "VolumeFails", mount_fails("FailedMount", NFS_DENIED), clear, says="access denied"),
    Planted("claim is on another node", "VolumeFails", mount_fails("FailedAttachVolume", MULTI_ATTACH), clear,
            says="Multi-Attach"),
    Planted("bundle of authorities is not there", "MissingConfigMap", mount_fails("FailedMount", CA_MAP), clear,
            says="corporate-ca"),
    Planted("bundle without its key", "VolumeFails", mount_fails("FailedMount", CA_KEY), clear, says="ca.crt"),
    Planted("quota wants limits of the fetch", "QuotaNeedsResources",
            jobs(Affliction({}, ("FailedCreate", MUST_SPECIFY))), clear, says="must specify limits.cpu"),
    Planted("quota wants limits of workers", "QuotaNeedsResources", refusals(WORKER, MUST_SPECIFY), clear,
            says="must specify limits.cpu"),
    Planted("quota of a priority", "QuotaExceeded", refusals(WORKER, SCOPED), clear, says="insufficient quota"),
    Planted("quota of Jobs", "QuotaExceeded", writes("jobs", Forbidden(JOB_QUOTA), **HUB), clear,
            says="count/jobs.batch=1"),
    Planted("quota of claims", "QuotaExceeded", writes("persistentvolumeclaims", Forbidden(CLAIM_QUOTA)), clear,
            says="persistentvolumeclaims=1"),
    Planted("fetch denied by a policy", "AdmissionDenied", jobs(Affliction({}, ("FailedCreate", DENIED))), clear,
            says="images must come from"),
)  # fmt: skip
