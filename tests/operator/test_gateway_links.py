"""Links of gateways with the operator: keys derived from the uid, standbys that redirect to the holder."""

from __future__ import annotations

from typing import Any

import aiohttp

from baton_control.names import Key
from baton_control.telemetry.telemetry_server import DerivedKeys, address
from baton_operator.gateway_links import DeploymentLinks
from baton_operator.kube.cache import Cache
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.kube.kube_api import Change, WatchEvent
from baton_testing.kube.manifests import manifest
from baton_wire.keys import KeySet, derived_key

MASTERS = {"first": b"m" * 32, "second": b"n" * 32}
KEY = Key("team", "chat")


def live(uid: str = "u1", version: int = 1, **fields: object) -> dict[str, Any]:
    body = manifest(**fields)
    body["metadata"] = {"name": KEY.name, "namespace": KEY.namespace, "uid": uid, "resourceVersion": str(version)}
    return body


def links(holder: str | None = None) -> tuple[DeploymentLinks, Cache]:
    """Links, and the deployments that they know."""
    custom = CustomResources(None)
    opened = DeploymentLinks(custom, lambda: MASTERS, lambda key: None, lambda: holder)
    known = custom.caches[DEPLOYMENTS]
    known.apply_event(WatchEvent(Change.ADDED, live()))
    return opened, known


def test_keys_follow_from_the_masters_and_the_uid_and_rotate_with_them() -> None:
    masters = dict(MASTERS)
    keys = DerivedKeys(lambda: masters, "u1")
    assert keys.current() == KeySet({name: bytes.fromhex(derived_key(key, "u1")) for name, key in MASTERS.items()})
    del masters["first"]
    assert keys.current().ids == ("second",)
    assert DerivedKeys(lambda: masters, "u2").current() != keys.current()


def test_a_deployment_that_is_gone_or_was_made_anew_lets_no_old_link_in() -> None:
    opened, known = links()
    first = opened._keys(KEY)
    assert first is not None
    known.apply_event(WatchEvent(Change.DELETED, live(version=2)))
    assert opened._keys(KEY) is None
    known.apply_event(WatchEvent(Change.ADDED, live("u2", 3)))
    second = opened._keys(KEY)
    assert second is not None
    assert second.current() != first.current()


async def test_an_unknown_deployment_is_turned_away_before_anything_is_read() -> None:
    opened, _ = links()
    async with (
        opened.serving(("127.0.0.1", 0)) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/gateways/team/other") as answer,
    ):
        assert answer.status == 404


def test_the_holder_is_named_as_an_address_or_not_at_all() -> None:
    assert str(address("10.0.0.7:8443")) == "10.0.0.7:8443"
    assert str(address("[fd00::7]:8443")) == "[fd00::7]:8443"
    assert address("nonsense") is None
    assert address(None) is None
