"""Why Pods do not come up, as plain text: what Kubernetes says of a namespace, and what of the cluster has ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from baton_testing.pods.kubectl import Failed, Json, Kubectl

EVENTS, LINES = 25, 8
"""How many of the newest are told."""


def trouble_report(kubectl: Kubectl, local: Path | None) -> str:
    """Of the namespace of `kubectl`. What cannot be read is told in its place: a report never raises."""
    parts = ["load average " + " ".join(f"{each:.1f}" for each in os.getloadavg())]
    parts += [] if local is None else ended_parts(local)
    for kind, told in (("nodes", of_nodes), ("deployments", of_deployments), ("pods", of_pods), ("events", of_events)):
        try:
            parts += told(kubectl.all(kind))
        except Failed as error:
            parts.append(f"{kind}: {error}")
    with contextlib.suppress(Failed):  # said above
        parts += [line for pod in kubectl.all("pods") for line in _logs(kubectl, pod)]
    return "\n".join(parts)


def of_nodes(nodes: list[Json]) -> list[str]:
    """Those where a Pod may not be placed; all others are fine."""
    found = []
    for node in nodes:
        conditions = node.get("status", {}).get("conditions", [])
        wrong = [each for each in conditions if (each["status"] == "True") != (each["type"] == "Ready")]
        said = [f"{each['type']} {each['status']}: {each.get('message', '')}" for each in wrong]
        said += [f"taint {each['key']}:{each['effect']}" for each in node["spec"].get("taints") or ()]
        found += [f"node {node['metadata']['name']}: {each}" for each in said]
    return found


def of_deployments(deployments: list[Json]) -> list[str]:
    """Their conditions; one without any was not looked at by a controller."""
    found = []
    for each in deployments:
        conditions = each.get("status", {}).get("conditions") or []
        said = [f"{one['type']} {one['status']}: {one.get('message', '')}" for one in conditions]
        found += [f"deployment {each['metadata']['name']}: {one}" for one in said or ["no controller has looked at it"]]
    return found


def of_pods(pods: list[Json]) -> list[str]:
    """Where each is, and what it or its containers wait for or ended with."""
    found = [] if pods else ["there is no Pod"]
    for pod in pods:
        status = pod.get("status", {})
        said = [f"{status.get('phase', 'no phase')} on {pod['spec'].get('nodeName', 'no node')}"]
        for each in status.get("containerStatuses", []):
            said.append(f"{each['name']}: restarts {each['restartCount']}, {_state(each['state'])}")
            said += [f"before: {_state(each['lastState'])}"] if each.get("lastState") else []
        said += [
            f"{each['type']} {each['status']}: {each['message']}"
            for each in status.get("conditions", [])
            if each["status"] != "True" and each.get("message") and each.get("reason") != "ContainersNotReady"
        ]
        found.append(f"pod {pod['metadata']['name']}: {'; '.join(said)}")
    return found


def of_events(events: list[Json]) -> list[str]:
    """The newest, in the order of time."""

    def at(event: Json) -> str:
        return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])

    found = []
    for each in sorted(events, key=at)[-EVENTS:]:
        about = each["involvedObject"]
        times = f" ({each['count']} times)" if each.get("count", 1) > 1 else ""
        said = f"{each.get('reason', '')}: {each.get('message', '').strip()}{times}"
        found.append(f"event {at(each)} {about['kind']} {about['name']} {said}")
    return found


def ended_parts(local: Path) -> list[str]:
    """Of the local cluster in this folder, parts that were started and run no longer, with the end of their logs."""
    found = []
    for path in sorted(local.glob("run/*.pid")):
        if _runs(int(path.read_text(encoding="ascii"))):
            continue
        log = local / "log" / f"{path.stem}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        found += [f"PART {path.stem} OF THE CLUSTER HAS ENDED"]
        found += [f"{path.stem}: {line[:400]}" for line in _without_stacks(lines)[-LINES:]]
    return found


def _without_stacks(lines: list[str]) -> list[str]:
    """A Go program that gives up writes the stacks of all goroutines behind its reason."""
    ends = [place for place, line in enumerate(lines) if line.startswith("goroutine ")]
    return lines[: ends[0]] if ends else lines


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _state(state: Json) -> str:
    for name, each in state.items():
        said = [name, *(str(each[key]) for key in ("reason", "exitCode", "message") if key in each)]
        return " ".join(said).strip().replace("\n", " | ")
    return "no state"


def _logs(kubectl: Kubectl, pod: Json) -> list[str]:
    name, found = pod["metadata"]["name"], []
    for status in pod.get("status", {}).get("containerStatuses", []):
        for earlier in [["--previous"]] * bool(status["restartCount"]) + [[]]:
            try:
                text = kubectl.run("logs", name, f"--container={status['name']}", f"--tail={LINES}", *earlier)
            except Failed as error:
                text = f"no log: {error}"
            of = f"log of {name}{' before its restart' if earlier else ''}"
            found += [f"{of}: {line[:400]}" for line in text.splitlines() or ["empty"]]
    return found
