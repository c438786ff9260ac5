"""Why Pods do not come up, as plain text: what Kubernetes says of a namespace, and what of the cluster has ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from baton_testing.pods.kubectl import Failed, Json, Kubectl

EVENTS, LINES = 25, 8
"""The number of the newest events and log lines that are reported."""


def trouble_report(kubectl: Kubectl, local: Path | None) -> str:
    """The report on a namespace. An error stands in place of what cannot be read: a report never raises."""
    parts = ["load average " + " ".join(f"{load:.1f}" for load in os.getloadavg())]
    parts += [] if local is None else ended_parts(local)
    for kind, describe in (
        ("nodes", of_nodes),
        ("deployments", of_deployments),
        ("pods", of_pods),
        ("events", of_events),
    ):
        try:
            parts += describe(kubectl.all(kind))
        except Failed as error:
            parts.append(f"{kind}: {error}")
    with contextlib.suppress(Failed):  # reported above
        parts += [line for pod in kubectl.all("pods") for line in _logs(kubectl, pod)]
    return "\n".join(parts)


def of_nodes(nodes: list[Json]) -> list[str]:
    """Nodes where a Pod may not be placed; all others are fine."""
    lines = []
    for node in nodes:
        conditions = node.get("status", {}).get("conditions", [])
        wrong = [entry for entry in conditions if (entry["status"] == "True") != (entry["type"] == "Ready")]
        problems = [f"{entry['type']} {entry['status']}: {entry.get('message', '')}" for entry in wrong]
        problems += [f"taint {taint['key']}:{taint['effect']}" for taint in node["spec"].get("taints") or ()]
        lines += [f"node {node['metadata']['name']}: {problem}" for problem in problems]
    return lines


def of_deployments(deployments: list[Json]) -> list[str]:
    """The conditions of Deployments; a Deployment without any was not seen by a controller."""
    lines = []
    for deployment in deployments:
        conditions = deployment.get("status", {}).get("conditions") or []
        texts = [f"{entry['type']} {entry['status']}: {entry.get('message', '')}" for entry in conditions]
        texts = texts or ["no controller has looked at it"]
        lines += [f"deployment {deployment['metadata']['name']}: {text}" for text in texts]
    return lines


def of_pods(pods: list[Json]) -> list[str]:
    """The place of each Pod, and what the Pod or its containers wait for or ended with."""
    lines = [] if pods else ["there is no Pod"]
    for pod in pods:
        status = pod.get("status", {})
        texts = [f"{status.get('phase', 'no phase')} on {pod['spec'].get('nodeName', 'no node')}"]
        for container in status.get("containerStatuses", []):
            texts.append(f"{container['name']}: restarts {container['restartCount']}, {_state(container['state'])}")
            texts += [f"before: {_state(container['lastState'])}"] if container.get("lastState") else []
        texts += [
            f"{entry['type']} {entry['status']}: {entry['message']}"
            for entry in status.get("conditions", [])
            if entry["status"] != "True" and entry.get("message") and entry.get("reason") != "ContainersNotReady"
        ]
        lines.append(f"pod {pod['metadata']['name']}: {'; '.join(texts)}")
    return lines


def of_events(events: list[Json]) -> list[str]:
    """The newest, in the order of time."""

    def at(event: Json) -> str:
        return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])

    lines = []
    for event in sorted(events, key=at)[-EVENTS:]:
        about = event["involvedObject"]
        times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
        text = f"{event.get('reason', '')}: {event.get('message', '').strip()}{times}"
        lines.append(f"event {at(event)} {about['kind']} {about['name']} {text}")
    return lines


def ended_parts(local: Path) -> list[str]:
    """Parts of the local cluster in this folder that were started and no longer run, with the end of their logs."""
    lines = []
    for path in sorted(local.glob("run/*.pid")):
        if _runs(int(path.read_text(encoding="ascii"))):
            continue
        log = local / "log" / f"{path.stem}.log"
        text = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        lines += [f"PART {path.stem} OF THE CLUSTER HAS ENDED"]
        lines += [f"{path.stem}: {line[:400]}" for line in _without_stacks(text)[-LINES:]]
    return lines


def _without_stacks(lines: list[str]) -> list[str]:
    """The lines before the stacks of all goroutines, which a Go program writes after the reason why it gave up."""
    ends = [place for place, line in enumerate(lines) if line.startswith("goroutine ")]
    return lines[: ends[0]] if ends else lines


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _state(state: Json) -> str:
    for name, details in state.items():
        words = [name, *(str(details[key]) for key in ("reason", "exitCode", "message") if key in details)]
        return " ".join(words).strip().replace("\n", " | ")
    return "no state"


def _logs(kubectl: Kubectl, pod: Json) -> list[str]:
    name, lines = pod["metadata"]["name"], []
    for status in pod.get("status", {}).get("containerStatuses", []):
        for earlier in [["--previous"]] * bool(status["restartCount"]) + [[]]:
            try:
                text = kubectl.run("logs", name, f"--container={status['name']}", f"--tail={LINES}", *earlier)
            except Failed as error:
                text = f"no log: {error}"
            of = f"log of {name}{' before its restart' if earlier else ''}"
            lines += [f"{of}: {line[:400]}" for line in text.splitlines() or ["empty"]]
    return lines
