"""The flags of the operator's process, and the settings that follow from them together."""

from __future__ import annotations

import argparse
import enum
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from baton_operator.kube.custom_resources import is_class
from baton_operator.objects.batch_settings import parse_batch_settings
from baton_operator.objects.cluster import Platform
from baton_operator.objects.fetch_settings import parse_fetch_settings
from baton_operator.objects.identity_settings import parse_identity_settings
from baton_operator.objects.network_settings import DNS_PORT, NetworkSettings, WorkloadPolicies, parse_rules
from baton_operator.objects.optional import parse_labels
from baton_operator.objects.pod_ids import parse_pod_ids
from baton_operator.objects.pod_policy import parse_pod_policy
from baton_wire.log_format import LOG_FORMAT_VARIABLE, LogFormat, chosen_format

DEFAULT_NAMESPACE = "baton-system"
_INTERVAL = re.compile(r"[1-9][0-9]{0,5}(ms|s|m|h)")
CLASS_HELP = "work only on LLMDeployments with this spec.operatorClass; default: on those without one"


class RoutableFrom(enum.StrEnum):
    """The source of what is known about routable workers: gateways' reports, or readiness."""

    GATEWAY = "gateway"
    READINESS = "readiness"


@dataclass(frozen=True, slots=True)
class Settings:
    namespaces: tuple[str, ...] | None
    """The namespaces to watch; None: all."""
    own_namespace: str
    platform: Platform
    master_keys: Path | None
    """The folder with the master keys; None: they are in `master_key_secret`."""
    master_key_secret: str | None
    """The Secret in the operator's namespace with the master keys, which the operator makes when it is absent."""
    listen: tuple[str, int]
    """Health and metrics."""
    gateway_listen: tuple[str, int] | None
    """Address for links from gateways; None: no links are accepted."""
    operator_class: str | None
    """The class of LLMDeployments to work on; None: those without a class."""
    lease: str | None
    """Name of the Lease; None: this process is the only one."""
    advertise: str
    """`HOST:PORT` at which gateways reach this process; empty: not known."""
    routable_from: RoutableFrom
    workers: int
    calls_per_s: float
    resync_s: float
    log_level: str
    log_format: LogFormat
    """The form of the operator's log lines, and of those of the Pods that it makes."""


def parse(argv: list[str]) -> Settings:
    """Raises SystemExit with a message for what is not allowed."""
    parser = argparse.ArgumentParser(prog="baton-operator", description="Turns LLMDeployments into running pools.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--namespaces", help="comma-separated namespaces to watch; default: the operator's own")
    where.add_argument("--all-namespaces", action="store_true", help="watch the whole cluster")
    own = os.environ.get("POD_NAMESPACE", DEFAULT_NAMESPACE)
    parser.add_argument("--own-namespace", default=own, help="where the operator runs (POD_NAMESPACE)")
    parser.add_argument("--worker-image", required=True, help="IMAGE@sha256:DIGEST of new workers")
    parser.add_argument("--gateway-image", required=True, help="IMAGE@sha256:DIGEST of new gateways")
    parser.add_argument("--python", default="python", help="the interpreter in these images")
    masters = parser.add_mutually_exclusive_group(required=True)
    masters.add_argument("--master-keys", type=Path, help="folder with master keys, one file each")
    masters.add_argument(
        "--master-key-secret",
        metavar="NAME",
        help="Secret in the operator's namespace with master keys; made when it is absent, never changed",
    )
    parser.add_argument("--monitoring-namespace", help="namespace that may read metrics")
    parser.add_argument("--pod-monitors", action="store_true", help="make PodMonitors for all deployments")
    parser.add_argument("--prometheus-rules", action="store_true", help="make PrometheusRules for all deployments")
    _add_installation_flags(parser)
    parser.add_argument("--cluster-domain", default="cluster.local")
    parser.add_argument("--fetch-ports", default="443", help="comma-separated ports that fetch Jobs may reach")
    parser.add_argument("--fetch-cidrs", default="", help="comma-separated private networks that fetch Jobs may reach")
    parser.add_argument(
        "--workload-pull-secrets",
        default="",
        help="comma-separated Secrets of each namespace that Pods without pull secrets of their own use",
    )
    parser.add_argument(
        "--fetch-pod",
        default="{}",
        metavar="JSON",
        help="proxy, private CA, labels and annotations of fetch Pods: docs/install.md",
    )
    parser.add_argument(
        "--pod-policy",
        default="{}",
        metavar="JSON",
        help="lists of what LLMDeployments may set on Pods: docs/security.md",
    )
    parser.add_argument("--listen", default="[::]:8080", help="HOST:PORT of health and metrics")
    parser.add_argument("--gateway-listen", default="[::]:8443", help="HOST:PORT for links from gateways, or none")
    parser.add_argument(
        "--operator-service", default="baton-operator", help="Service in the operator's namespace that gateways dial"
    )
    parser.add_argument("--class", dest="operator_class", metavar="NAME", help=CLASS_HELP)
    parser.add_argument("--lease", help="name of the Lease, or none; default: baton-operator, and the class after it")
    parser.add_argument("--routable-from", type=RoutableFrom, choices=list(RoutableFrom), default=RoutableFrom.GATEWAY)
    parser.add_argument("--workers", type=int, default=8, help="passes at a time")
    parser.add_argument("--calls-per-s", type=float, default=200.0, help="calls to the API server")
    parser.add_argument(
        "--resync-s", type=float, default=300.0, help="every deployment gets a pass at least this often"
    )
    parser.add_argument(
        "--log-format",
        choices=list(LogFormat),
        help=f"log lines of the operator, gateways, workers and fetch Pods; default: {LOG_FORMAT_VARIABLE}, else text",
    )
    parser.add_argument("--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR"], default="INFO")
    given = parser.parse_args(argv)
    try:
        log_format = chosen_format(given.log_format, os.environ)
        platform = Platform(
            worker_image=given.worker_image,
            gateway_image=given.gateway_image,
            operator_namespace=given.own_namespace,
            monitoring_namespace=given.monitoring_namespace,
            monitors=given.pod_monitors,
            alerts=given.prometheus_rules,
            monitoring_labels=parse_labels("--monitoring-labels", given.monitoring_labels),
            monitoring_interval=_interval(given.monitoring_interval),
            metrics_compat=given.metrics_compat,
            ledger=given.ledger,
            batches=parse_batch_settings(given.batches),
            identity=parse_identity_settings(given.identity),
            llmd_labels=given.llmd_labels,
            inference_pool=given.inference_pool,
            route_timeouts=not given.no_route_timeouts,
            json_logs=log_format is LogFormat.JSON,
            network=NetworkSettings(
                workloads=given.network_policies,
                dns_ports=_ports("--dns-ports", given.dns_ports),
                ingress=parse_rules("--additional-ingress", given.additional_ingress, "from"),
                egress=parse_rules("--additional-egress", given.additional_egress, "to"),
            ),
            pod_ids=parse_pod_ids(given.security_context),
            cluster_domain=given.cluster_domain,
            operator_service=None if given.gateway_listen == "none" else given.operator_service,
            hears_gateways=given.routable_from is RoutableFrom.GATEWAY,
            python=given.python,
            fetch_ports=_ports("--fetch-ports", given.fetch_ports),
            fetch_cidrs=_networks(given.fetch_cidrs),
            fetch=parse_fetch_settings(given.fetch_pod),
            pod_policy=parse_pod_policy(given.pod_policy),
            pull_secrets=tuple(name.strip() for name in given.workload_pull_secrets.split(",") if name.strip()),
        )
    except ValueError as error:
        parser.error(str(error))
    if given.workers < 1 or given.calls_per_s <= 0 or given.resync_s <= 0:
        parser.error("--workers, --calls-per-s and --resync-s must be positive")
    if given.gateway_listen == "none" and given.routable_from is RoutableFrom.GATEWAY:
        given.routable_from = RoutableFrom.READINESS
    if given.operator_class is not None and not is_class(given.operator_class):
        parser.error(f"--class: {given.operator_class!r} is not allowed: must be a label such as team-a")
    named = tuple(name.strip() for name in (given.namespaces or given.own_namespace).split(",") if name.strip())
    return Settings(
        namespaces=None if given.all_namespaces else named,
        own_namespace=given.own_namespace,
        platform=platform,
        master_keys=given.master_keys,
        master_key_secret=given.master_key_secret,
        listen=_address(parser, "--listen", given.listen),
        gateway_listen=None
        if given.gateway_listen == "none"
        else _address(parser, "--gateway-listen", given.gateway_listen),
        advertise=_advertised_address(given.gateway_listen),
        operator_class=given.operator_class,
        lease=None if given.lease == "none" else given.lease or _lease_name(given.operator_class),
        routable_from=given.routable_from,
        workers=given.workers,
        calls_per_s=given.calls_per_s,
        resync_s=given.resync_s,
        log_level=given.log_level,
        log_format=log_format,
    )


def _add_installation_flags(parser: argparse.ArgumentParser) -> None:
    """The flags for what an installation adds to the objects of all deployments, or leaves out of them."""
    parser.add_argument(
        "--monitoring-labels", default="{}", metavar="JSON", help="labels of PodMonitors and PrometheusRules"
    )
    parser.add_argument("--monitoring-interval", default="15s", help="time between two reads of a Pod's metrics")
    parser.add_argument("--ledger", choices=("stdout",), default="", help="have gateways write what requests use there")
    parser.add_argument(
        "--batches",
        default="{}",
        metavar="JSON",
        help="claim in which gateways keep files and batches, and its bounds: docs/batches.md",
    )
    parser.add_argument(
        "--identity",
        default="{}",
        metavar="JSON",
        help="tokens and a trusted gateway's header that gateways with tenants accept: docs/install/identity.md",
    )
    parser.add_argument("--metrics-compat", choices=("vllm",), default="", help="serve metrics under these names too")
    parser.add_argument("--llmd-labels", action="store_true", help="labels llm-d.ai/role and llm-d.ai/model on Pods")
    parser.add_argument(
        "--inference-pool",
        action="store_true",
        help="make an InferencePool of the gateway Pods of each deployment, and let its HTTPRoute point to it",
    )
    parser.add_argument(
        "--no-route-timeouts", action="store_true", help="leave timeouts out of HTTPRoutes, for Gateways without them"
    )
    parser.add_argument("--dns-ports", default=str(DNS_PORT), help="comma-separated ports that DNS servers listen on")
    parser.add_argument(
        "--network-policies",
        type=WorkloadPolicies,
        choices=list(WorkloadPolicies),
        default=WorkloadPolicies.MANAGED,
        help="Off: deployments get no NetworkPolicies, and those that the operator made are deleted",
    )
    for direction in ("ingress", "egress"):
        parser.add_argument(
            f"--additional-{direction}",
            default="[]",
            metavar="JSON",
            help=f"{direction} rules of a NetworkPolicy for all Pods of every deployment",
        )
    parser.add_argument(
        "--security-context",
        default="{}",
        metavar="JSON",
        help="runAsUser, runAsGroup and fsGroup of Pods; null leaves an id to the namespace",
    )


def _interval(text: str) -> str:
    """Raises ValueError."""
    if _INTERVAL.fullmatch(text) is None:
        raise ValueError(f"--monitoring-interval: {text!r} is not allowed: must be a duration such as 15s")
    return text


def _lease_name(operator_class: str | None) -> str:
    return "baton-operator" if operator_class is None else f"baton-operator-{operator_class}"


def _ports(flag: str, text: str) -> tuple[int, ...]:
    """Raises ValueError."""
    ports = tuple(int(port) if port.isascii() and port.isdigit() else 0 for port in text.split(","))
    if not all(0 < port < 65_536 for port in ports):
        raise ValueError(f"{flag}: {text!r} is not allowed: must be ports from 1 to 65535")
    return ports


def _networks(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    try:
        return tuple(str(ipaddress.ip_network(network.strip())) for network in text.split(",") if network.strip())
    except ValueError as error:
        raise ValueError(f"--fetch-cidrs: {error}: must be networks such as 10.20.0.0/16") from error


def _advertised_address(listen: str) -> str:
    """The Pod's own address with the listening port."""
    host, port = os.environ.get("POD_IP", ""), listen.rpartition(":")[2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host and port.isdigit() else ""


def _address(parser: argparse.ArgumentParser, flag: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        parser.error(f"{flag}: {text!r} is not allowed: must be HOST:PORT")
    return host.strip("[]"), int(port)
