"""Pod Security Standards, level *restricted*, as an evaluator over Pod specs: every violation with its path.

Follows the published controls of the levels baseline and restricted, Linux only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SYSCTLS = {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies"}
PROFILES = {"RuntimeDefault", "Localhost"}


def violations(pod: Json) -> list[str]:
    """The violations of the level in a Pod's `spec`."""
    return [
        *_of_pod(pod),
        *(violation for container in _containers(pod) for violation in _of_container(container, pod)),
    ]


def _containers(pod: Json) -> Iterator[Json]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(field, [])


def _of_pod(pod: Json) -> Iterator[str]:
    yield from (field for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field))
    for volume in pod.get("volumes", []):
        if not set(volume) - {"name"} <= VOLUMES:
            yield f"volumes.{volume['name']}"
    context = pod.get("securityContext", {})
    if context.get("runAsUser") == 0:
        yield "securityContext.runAsUser"
    for sysctl in context.get("sysctls", []):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctls.{sysctl['name']}"


def _of_container(container: Json, pod: Json) -> Iterator[str]:
    name, own, shared = container["name"], container.get("securityContext", {}), pod.get("securityContext", {})
    if own.get("privileged"):
        yield f"{name}.privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}.allowPrivilegeEscalation"
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True or own.get("runAsUser") == 0:
        yield f"{name}.runAsNonRoot"
    if own.get("seccompProfile", shared.get("seccompProfile", {})).get("type") not in PROFILES:
        yield f"{name}.seccompProfile"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}.capabilities"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}.procMount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}.hostPort"
