"""The flags of the operator's process: what is allowed and what is refused."""

from __future__ import annotations

import pytest

from baton_operator.objects.network_settings import WorkloadPolicies
from baton_operator.objects.pod_ids import PodIds
from baton_operator.settings import RoutableFrom, Settings, parse

IMAGE = "registry.example.com/baton@sha256:" + "a" * 64
FLAGS = [f"--worker-image={IMAGE}", f"--gateway-image={IMAGE}", "--master-keys=/keys"]


def parsed(*flags: str) -> Settings:
    return parse([*FLAGS, *flags])


def test_by_default_it_watches_its_own_namespace_and_listens_to_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "mine")
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    settings = parsed()
    assert (settings.namespaces, settings.own_namespace, settings.lease) == (("mine",), "mine", "baton-operator")
    assert (settings.gateway_listen, settings.advertise) == (("::", 8443), "10.0.0.7:8443")
    assert settings.routable_from is RoutableFrom.GATEWAY
    assert settings.platform.operator_service == "baton-operator"


def test_namespaces_can_be_named_or_be_all() -> None:
    assert parsed("--namespaces=a, b,").namespaces == ("a", "b")
    assert parsed("--all-namespaces").namespaces is None


def test_an_installation_shapes_networks_ids_and_monitors_of_all_deployments() -> None:
    platform = parsed(
        "--dns-ports=53,5353",
        "--network-policies=Off",
        '--additional-egress=[{"ports": [{"port": 15012}]}]',
        '--security-context={"runAsUser": null, "fsGroup": 7}',
        '--monitoring-labels={"release": "kube-prometheus-stack"}',
        "--monitoring-interval=1m",
    ).platform
    assert (platform.network.dns_ports, platform.network.workloads) == ((53, 5353), WorkloadPolicies.OFF)
    assert platform.network.egress == ({"ports": [{"port": 15012}]},)
    assert platform.pod_ids == PodIds(run_as_user=None, fs_group=7)
    assert platform.monitoring_labels == (("release", "kube-prometheus-stack"),)
    assert platform.monitoring_interval == "1m"
    assert parsed().platform.pod_ids == PodIds()


def test_a_class_has_a_lease_of_its_own() -> None:
    assert parsed().operator_class is None
    assert (parsed("--class=gold").operator_class, parsed("--class=gold").lease) == ("gold", "baton-operator-gold")
    assert parsed("--class=gold", "--lease=mine").lease == "mine"


def test_without_links_workers_are_judged_by_readiness() -> None:
    settings = parsed("--gateway-listen=none")
    assert settings.routable_from is RoutableFrom.READINESS
    assert settings.platform.operator_service is None
    assert parsed("--lease=none").lease is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--worker-image=registry.example.com/baton:latest"],
        ["--listen=8080"],
        ["--listen=0.0.0.0:99999"],
        ["--workers=0"],
        ["--class=Gold"],
        ["--calls-per-s=0"],
        ["--all-namespaces", "--namespaces=a"],
        ["--routable-from=hope"],
        ["--fetch-pod={"],
        ["--master-key-secret=both"],
        ["--dns-ports=0"],
        ["--network-policies=Never"],
        ["--additional-ingress={}"],
        ['--additional-egress=[{"from": []}]'],
        ['--security-context={"runAsUser": 0}'],
        ['--security-context={"runAsRoot": true}'],
        ['--monitoring-labels={"a b": "c"}'],
        ["--monitoring-interval=often"],
    ],
)
def test_what_makes_no_sense_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*flags)
    assert caught.value.code == 2
    assert flags[-1].partition("=")[0].removeprefix("--").split("-")[0] in capsys.readouterr().err
