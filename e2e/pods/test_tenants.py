"""Three tenants of two namespaces: keys are rotated, limits edited and a tenant removed while all of them ask.

What happens to one tenant costs the others no request. A tenant's tokens of the month stay counted over a restart of
its gateways. Each test leaves the deployment of the other tests as it found it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from baton_testing.pods.generator import Load
from baton_testing.pods.kubectl import Json, Kubectl, until
from baton_testing.pods.served import NAME, World

pytestmark = pytest.mark.timeout(1200)
SCRIPT = """
import json, sys, urllib.error, urllib.request
url, key = sys.argv[1:]
body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Who won?"}], "max_tokens": 24}
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
try:
    with urllib.request.urlopen(request, timeout=60) as got:
        print(json.dumps([got.status, None]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)["error"]["code"]]))
"""
DEADLINE_S = 60.0
"""For an edit to count at the gateways; how long it took is noted."""


@dataclass
class Site:
    """One namespace: its deployment, its tenants, and a Pod that asks once at a time."""

    world: World
    kubectl: Kubectl
    asker: Load = field(init=False)

    def __post_init__(self) -> None:
        self.asker = self.load("asker", "key-of-the-asker")

    @property
    def url(self) -> str:
        return f"http://{NAME}-gateway.{self.kubectl.namespace}.svc"

    def load(self, name: str, key: str) -> Load:
        return Load(self.kubectl, name, self.world.image, self.url, concurrency=1, key=key)

    def tenant(self, name: str, *keys: str, **limits: int) -> None:
        """Apply a tenant with these keys."""
        digests = [{"sha256": hashlib.sha256(key.encode()).hexdigest()} for key in keys]
        metadata = {"name": name, "namespace": self.kubectl.namespace}
        spec = {"apiKeys": digests, "limits": limits}
        manifest = {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMTenant", "metadata": metadata, "spec": spec}
        self.kubectl.apply(manifest)

    def ready(self, name: str) -> tuple[str, str]:
        """Status and reason of a tenant's condition for its present spec; empty: none yet."""
        tenant = self.kubectl.get("llmtenant", name) or {}
        for condition in tenant.get("status", {}).get("conditions", []):
            if condition["type"] == "Ready" and condition["observedGeneration"] == tenant["metadata"]["generation"]:
                return condition["status"], condition["reason"]
        return "", ""

    def ask(self, key: str) -> tuple[int, str | None]:
        """Status and code of one request."""
        text = self.kubectl.run("exec", self.asker.name, "--", "python", "-c", SCRIPT, self.url, key)
        status, code = json.loads(text.strip().splitlines()[-1])
        return status, code

    def until_answered(self, what: str, key: str, *wanted: tuple[int, str | None]) -> None:
        """Wait until a key's requests are answered like this, and note how long that took."""
        seconds = until(what, lambda: self.ask(key) in wanted, DEADLINE_S, every_s=0.2)
        self.world.note(f"tenants: {what}", seconds=round(seconds, 1))

    def wait_until_serving(self) -> None:
        def is_serving() -> bool:
            status: Json = (self.kubectl.get("llmdeployment", NAME) or {}).get("status", {})
            return status.get("summary") == "Serving"

        until(f"{self.kubectl.namespace} serves", is_serving, 300, every_s=1.0)


@pytest.fixture
def sites(world: World) -> Iterator[tuple[Site, Site]]:
    """The namespace of the other tests and one more, each with a deployment that lets tenants in."""
    before = world.release
    second = Kubectl(f"{world.kubectl.namespace}-two")
    second.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": second.namespace}})
    world.release = replace(before, watched=f"{before.watched},{second.namespace}")
    world.release.install()
    world.release.wait_until_active()
    first_site, second_site = Site(world, world.kubectl), Site(world, second)
    try:
        for site in (first_site, second_site):
            deployment = world.deployment(gateway__tenants=True)
            deployment["metadata"]["namespace"] = site.kubectl.namespace
            site.kubectl.apply(deployment)
        for site in (first_site, second_site):
            site.wait_until_serving()
            site.asker.start()
        yield first_site, second_site
    finally:
        for site in (first_site, second_site):
            site.kubectl.run("delete", "llmtenant", "--all")
            site.kubectl.run("delete", "pod", "asker", "--ignore-not-found", "--wait=false")
        second.run("delete", "llm", "--all", "--wait=true", timeout_s=180)
        second.run("delete", "namespace", second.namespace, "--wait=true", timeout_s=180)
        world.release = before
        before.install()
        before.wait_until_active()
        world.kubectl.apply(world.deployment())
        world.wait_until_settled(1, 1)


@contextmanager
def losing_nothing(world: World, *loads: Load) -> Iterator[None]:
    """Loads while the block runs, none of whose requests fails."""
    for load in loads:
        load.start()
    try:
        for load in loads:
            load.wait_for(3)
        yield
        for load in loads:
            load.wait_for(3)
    finally:
        outcomes = {f"{load.kubectl.namespace}/{load.name}": load.stop() for load in loads}
        world.note("tenants: load", **{name: [end["ok"], end["failed"]] for name, end in outcomes.items()})
    assert {name: end["failures"][:5] for name, end in outcomes.items() if end["failed"]} == {}


def test_three_tenants_of_two_namespaces_are_edited_under_load_and_the_others_lose_nothing(
    world: World, sites: tuple[Site, Site]
) -> None:
    one, two = sites
    one.tenant("web", "first-key-of-web")
    one.tenant("batch", "key-of-batch", requestsPerMinute=100_000)
    two.tenant("web", "key-of-the-other-web")
    for site, name in ((one, "web"), (one, "batch"), (two, "web")):
        until(f"{name} is let in", lambda site=site, name=name: site.ready(name) == ("True", "Compiled"), 60)  # type: ignore[misc]
    for site, key in ((one, "first-key-of-web"), (one, "key-of-batch"), (two, "key-of-the-other-web")):
        until(f"{key} counts", lambda site=site, key=key: site.ask(key) == (200, None), 60)  # type: ignore[misc]
    assert two.ask("key-of-batch") == (401, "invalid_api_key"), "a tenant of another namespace"
    assert one.ask("key-of-the-other-web") == (401, "invalid_api_key")

    other, batch = two.load("other-web", "key-of-the-other-web"), one.load("batch", "key-of-batch")
    with losing_nothing(world, other):
        with losing_nothing(world, batch):
            old = one.load("old-key", "first-key-of-web")
            with losing_nothing(world, old):
                one.tenant("web", "first-key-of-web", "second-key-of-web")
                one.until_answered("a new key counts", "second-key-of-web", (200, None))
            with losing_nothing(world, one.load("new-key", "second-key-of-web")):
                one.tenant("web", "second-key-of-web")
                one.until_answered("an old key is refused", "first-key-of-web", (401, "invalid_api_key"))
                one.tenant("copy", "second-key-of-web")
                until("the copy is refused", lambda: one.ready("copy") == ("False", "Refused"), 60)
                one.tenant("batch", "key-of-batch", requestsPerMinute=200_000, maxConcurrent=50)
                until("the limits are read", lambda: one.ready("batch")[0] == "True", 60)
        with losing_nothing(world, one.load("web", "second-key-of-web")):
            one.tenant("batch", "key-of-batch", requestsPerMinute=1)
            one.until_answered("a lower limit counts", "key-of-batch", (429, "rate_limit_exceeded"))
            one.kubectl.run("delete", "llmtenant", "batch")
            one.until_answered("a removed tenant is refused", "key-of-batch", (401, "invalid_api_key"))


def test_tokens_of_the_month_stay_counted_over_a_restart_of_gateways_and_operator(
    world: World, sites: tuple[Site, Site]
) -> None:
    one, two = sites
    one.tenant("web", "key-of-web")
    one.tenant("small", "key-of-small", tokensPerMonth=2_000)
    until("small is let in", lambda: one.ready("small") == ("True", "Compiled"), 60)
    until("its key counts", lambda: one.ask("key-of-small") == (200, None), 60)
    burner = one.load("burner", "key-of-small")
    with losing_nothing(world, one.load("web", "key-of-web")):
        burner.start()
        one.until_answered("the month is used up", "key-of-small", (429, "insufficient_quota"))
        assert burner.stop()["ok"] > 0

        def tokens() -> int:
            status: Json = (one.kubectl.get("llmtenant", "small") or {}).get("status", {})
            return int(status.get("usage", {}).get("tokens", 0))

        until("its status says so", lambda: tokens() > 1_000, 120)
        began = time.monotonic()
        one.kubectl.run("rollout", "restart", f"deployment/{NAME}-gateway")
        one.kubectl.run("rollout", "status", f"deployment/{NAME}-gateway", "--timeout=240s", timeout_s=250)
        world.release.kubectl.run("rollout", "restart", "deployment/baton-operator")
        world.release.wait_until_rolled_out()
        world.release.wait_until_active()
        world.note("tenants: gateways and operator restarted", seconds=round(time.monotonic() - began, 1))
        used_up = (429, "insufficient_quota")
        one.until_answered("still used up", "key-of-small", used_up)
        assert [one.ask("key-of-small") for _ in range(5)] == [used_up] * 5
        one.tenant("small", "key-of-small", tokensPerMonth=1_000_000)
        one.until_answered("a raised limit counts", "key-of-small", (200, None))
    assert two.ready("small") == ("", "")
