"""`python -m baton_operator`: wait for the Lease, then run until a stop signal or until the Lease is lost.

Exit status: 0 after a stop signal, 1 when the Lease was lost or something else ended the work, 2 for unusable flags.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import random
import secrets
import socket
import sys
from collections.abc import Callable, Coroutine

from baton_control.sizing.metrics import SizingMetrics
from baton_control.telemetry.tenant_metrics import TenantUse
from baton_operator import health, metrics
from baton_operator.gateway_links import DeploymentLinks
from baton_operator.kube.backoff import Backoff
from baton_operator.kube.claims import Claims, claim_name
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kopf.watch_stream import KopfStream
from baton_operator.kube.kube_api import KubeApi, KubeError
from baton_operator.kube.kubeconfig import KubeConfigError, load
from baton_operator.kube.lease import Lease, LeaseLost
from baton_operator.kube.reach import Scope
from baton_operator.kube.secrets_guard import SecretsUnguarded, check_secrets_guarded
from baton_operator.kube.server_version import lacks, look, warnings
from baton_operator.kube.streams import TooManyNamespaces, raise_open_files, scopes_for, shrink_read_buffers
from baton_operator.master_keys import KeyFolder, KeySecret, MasterKeys, MasterKeysError
from baton_operator.objects.allowed_env import idle_entries
from baton_operator.passes.reconcile import Installation
from baton_operator.passes.tenant_passes import TenantGateways
from baton_operator.runtime import Pace, Runtime
from baton_operator.settings import RoutableFrom, Settings, parse
from baton_wire.log_format import configure_logging
from baton_wire.stop_signals import handle_stop_signals

log = logging.getLogger("baton_operator")
KEYS_S = 10.0
STARTUP_S = 3.0


class StalledError(Exception):
    """This process makes no progress, and says why."""


def _unchanged(api: KubeApi) -> KubeApi:
    return api


async def run(settings: Settings, adapt: Callable[[KubeApi], KubeApi] = _unchanged) -> None:
    """Run one process from start to end; `adapt` wraps its API client. Raises LeaseLost, StalledError,
    MasterKeysError, KubeConfigError, TooManyNamespaces, SecretsUnguarded."""
    stop = asyncio.Event()

    def listen_to_signals() -> None:
        handle_stop_signals(asyncio.get_running_loop(), stop.set, stop.is_set)

    for entry in idle_entries(settings.platform.pod_policy.env):
        log.warning("--pod-policy: env: %r opens nothing: list whole names that are not reserved", entry)
    listen_to_signals()
    open_files = raise_open_files()
    shrink_read_buffers()
    async with (
        HttpKubeApi(load(), calls_per_s=settings.calls_per_s, burst=int(2 * settings.calls_per_s)) as session,
        contextlib.AsyncExitStack() as open_now,
    ):
        api = adapt(session)
        keys = MasterKeys(_key_source(api, settings))
        await _check_folder(keys, settings)
        installation = Installation(lambda: settings.platform, keys)
        metrics.REGISTRY.register(metrics.ApiCalls(lambda: session.calls))
        scopes: tuple[Scope, ...] = ()
        missing: tuple[str, ...] = ()
        """Features that the server lacks."""
        started: Runtime | None = None
        no_keys: collections.deque[str] = collections.deque(maxlen=1)
        """Why the master keys could not be read the last time."""

        async def choose() -> None:
            nonlocal scopes, missing
            version = await look(session.version)
            missing = warnings(version)
            metrics.server_lacks(feature.name for feature in lacks(version))
            await check_secrets_guarded(api, settings.namespaces)
            await _load_first_keys(keys, no_keys.append)
            scopes = await scopes_for(api, settings.namespaces, open_files)

        def waits() -> str | None:
            why = [f"waits for the API server at {session.server}; the log says why", *(() if keys() else no_keys)][-1]
            return why if started is None else None

        def problems() -> list[str]:
            closed = [f"namespace {name} cannot be read: {why}" for name, why in custom.reach.problems().items()]
            others = claims.others() if claims is not None else {}
            return [
                *missing,
                *closed,
                *(f"namespace {name} belongs to the operator {holder}" for name, holder in others.items()),
            ]

        def stalled() -> str | None:
            return started.stalled() if started is not None else None

        await open_now.enter_async_context(health.serving(settings.listen, stalled, problems, waits))
        if not await _finishes_before(stop, choose()):
            return
        custom = CustomResources(settings.namespaces, scopes, settings.operator_class)
        lease = _lease(api, settings)
        links = DeploymentLinks(
            custom, keys, lambda key: runtime.offer(key), lambda: None if lease is None else lease.holder_address
        )
        metrics.REGISTRY.register(metrics.AlteredGatewayFrames(lambda: links.server.altered.count))
        metrics.REGISTRY.register(TenantUse(links.server.limit_shares))
        hears_gateways = settings.routable_from is RoutableFrom.GATEWAY
        tenants = links.server.tenants
        claims = _claims(api, settings)
        runtime = Runtime(
            api,
            custom,
            installation,
            sizing=links.sizing if hears_gateways else None,
            telemetry=links.telemetry if hears_gateways else None,
            measured=SizingMetrics(metrics.REGISTRY),
            claims=claims,
            reads_nodes=True,
            tenant_gateways=TenantGateways(links.server.set_tenants, tenants.set_counts, tenants.conflicts),
            announce=links.server.set_history,
            now=session.clock.now,
            pace=Pace(workers=settings.workers, resync_s=settings.resync_s),
        )
        started = runtime
        if runtime.tenants is not None:
            tenants.on_conflicts = runtime.tenants.offer
        if settings.gateway_listen is not None:
            await open_now.enter_async_context(links.serving(settings.gateway_listen))
        stream = KopfStream(api, session, custom, on_start=listen_to_signals)
        streaming = asyncio.create_task(stream.run(), name="the stream of custom resources")
        open_now.push_async_callback(_end, streaming)
        if not await _finishes_before(stop, lease.acquire() if lease is not None else asyncio.sleep(0)):
            return
        await _reread_keys(keys)  # a standby does not follow rotations
        links.is_active = True
        metrics.is_active(True)
        try:
            await _run_active(runtime, streaming, lease, keys, stop)
        finally:
            links.is_active = False
            metrics.is_active(False)
            if lease is not None:
                await lease.release()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _run_active(
    runtime: Runtime, streaming: asyncio.Task[None], lease: Lease | None, keys: MasterKeys, stop: asyncio.Event
) -> None:
    """Do everything that only the active process does. Ends at a stop signal; raises what ended it otherwise."""
    works: list[Coroutine[object, object, None]] = [
        runtime.run(),
        _reload_keys(runtime, keys),
        _watch_progress(runtime),
        *([lease.keep()] if lease is not None else []),
    ]
    tasks = [asyncio.create_task(work) for work in works]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopped, streaming, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, LeaseLost):
            raise result
    for task in done - {stopped}:
        task.result()
        raise RuntimeError(f"{task.get_name()} ended by itself")


def _key_source(api: KubeApi, settings: Settings) -> KeyFolder | KeySecret:
    if settings.master_keys is not None:
        return KeyFolder(settings.master_keys)
    assert settings.master_key_secret is not None
    return KeySecret(api, settings.own_namespace, settings.master_key_secret)


async def _check_folder(keys: MasterKeys, settings: Settings) -> None:
    """Read a folder of master keys before the server is asked, so that an unusable one ends the process at once. Raises
    MasterKeysError."""
    if settings.master_keys is not None:
        await keys.load()


async def _load_first_keys(keys: MasterKeys, waits: Callable[[str], None]) -> None:
    """Read the master keys, or make them, waiting for a server that does not answer or does not allow it yet; `waits`
    gets what it waits for. Raises MasterKeysError."""
    backoff = Backoff(random.Random())
    while not keys():
        try:
            await keys.load()
        except KubeError as error:
            log.warning("master keys: %s", error)
            waits(f"waits for the master keys: {error}")
            await asyncio.sleep(backoff.after(error))


async def _reread_keys(keys: MasterKeys) -> bool:
    """Read the master keys again; whether they have changed. Keys that cannot be read leave the old ones in use."""
    try:
        changed = await keys.load()
    except (MasterKeysError, KubeError) as error:
        log.error("%s: the old keys stay in use", error)
        return False
    if changed:
        log.info("the master keys have changed: %s", ", ".join(keys()))
    return changed


async def _reload_keys(runtime: Runtime, keys: MasterKeys) -> None:
    while True:
        await asyncio.sleep(KEYS_S)
        if await _reread_keys(keys):
            runtime.offer_all()


async def _watch_progress(runtime: Runtime) -> None:
    """End the process when it makes no progress, so that another one gets the Lease. Raises StalledError."""
    while True:
        await asyncio.sleep(KEYS_S)
        why = runtime.stalled()
        if why is not None:
            raise StalledError(why)


async def _finishes_before(stop: asyncio.Event, work: Coroutine[object, object, None]) -> bool:
    """Do the work, unless the process has to stop first. Returns whether the work was done."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    is_done = task.done()
    for waiter in (task, stopped):
        waiter.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return is_done


def _lease(api: KubeApi, settings: Settings) -> Lease | None:
    if settings.lease is None:
        return None
    name = os.environ.get("POD_NAME", socket.gethostname())
    identity = f"{name}_{secrets.token_hex(4)}"
    return Lease(api, settings.own_namespace, settings.lease, identity, address=settings.advertise)


def _claims(api: KubeApi, settings: Settings) -> Claims | None:
    """The claims of this process; None without a Lease, where it is the only process."""
    if settings.lease is None:
        return None
    return Claims(api, claim_name(settings.operator_class), f"{settings.own_namespace}/{settings.lease}")


KOPF_OBJECTS = "kopf.objects"
"""The logger of kopf that writes a line for each handler that has succeeded, which says nothing of what was done."""


def main() -> int:
    settings = parse(sys.argv[1:])
    configure_logging(settings.log_level, settings.log_format)
    logging.getLogger(KOPF_OBJECTS).setLevel(logging.WARNING)
    try:
        asyncio.run(run(settings))
    except (LeaseLost, StalledError, MasterKeysError, KubeConfigError, TooManyNamespaces, SecretsUnguarded) as error:
        log.error("%s: %s", type(error).__name__, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
