"""Who may ask and what is left, with 10,000 tenants: processor time of a decision, memory, time to take an edit of all,
and until an edit of all is at four linked gateway processes.

python -m bench.serving.many_tenants
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import resource
import tempfile
import time
from pathlib import Path

from baton_control.spec.tenant_fields import LLMTenant
from baton_control.telemetry.month_counts import MonthCounts
from baton_control.tenant_compiler import TenantSource, compile_tenants
from baton_gateway.tenancy.month_meters import MonthMeters
from baton_gateway.tenancy.tenant_meters import Charge, Cost, TenantMeters
from baton_gateway.tenancy.tenants import Tenants
from baton_testing.gateway.gateway_process import until
from baton_testing.sizing.telemetry_links import KEY, keys_in, linking, operating
from baton_wire.messages.operator_link import MonthTotals
from baton_wire.tenant_table import NUM_SHARDS, TenantKey, TenantLimits, TenantRow, TenantShard, encode_shard, shard_of
from baton_wire.tenant_usage import month_number

TENANTS, REQUESTS, PROCESSES = 10_000, 100_000, 4
MONTH, NOW = "2026-11", 1_795_000_000.0


def shards(generation: int) -> list[TenantShard]:
    """A table in which every tenant has a key and four limits."""
    rows: dict[int, list[TenantRow]] = {place: [] for place in range(NUM_SHARDS)}
    limits = TenantLimits(6_000 + generation, 1_000_000, 100_000, tokens_per_month=10**9)
    for number in range(TENANTS):
        digest = hashlib.sha256(f"key-{number}".encode()).hexdigest()
        row = TenantRow(f"team-{number}", (TenantKey(digest),), 1, (), limits)
        rows[shard_of(row.name)].append(row)
    return [TenantShard(place, generation, tuple(found)) for place, found in rows.items()]


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the figures."""
    contents = [[encode_shard(shard) for shard in shards(generation)] for generation in (1, 2)]
    before = rss_mib()
    tenants, meters, months = Tenants(None, Path("/nonexistent")), TenantMeters(), MonthMeters()
    months.link_begins()
    counts = MonthCounts(MONTH, {f"team-{number}": 1_000.0 for number in range(TENANTS)})
    totals, _, is_whole = counts.totals(b"", 0, TENANTS)
    months.take(MonthTotals(month_number(MONTH), 0, PROCESSES, totals, is_whole))
    for table in contents:
        began = time.thread_time()
        longest = 0.0
        for content in table:
            one = time.thread_time()
            tenants.take_content(content)
            longest = max(longest, time.thread_time() - one)
        print(f"a table of {TENANTS}: {time.thread_time() - began:.3f} s, one shard at most {longest * 1e3:.1f} ms")
    dice, took = random.Random(1), []
    for number in range(REQUESTS):
        key = f"Bearer key-{dice.randrange(TENANTS)}"
        began = time.thread_time()
        tenant = tenants.authenticate(key, 1.0)
        refusal = months.check(tenant, 600, NOW)
        charge = meters.charge(tenant, Cost(1, 500, 100), number / 1_000)
        month = months.charge(tenant, 600)
        meters.remaining(tenant, number / 1_000)
        took.append(time.thread_time() - began)
        assert refusal is None
        months.settle(month, 550)
        if isinstance(charge, Charge):
            meters.settle(charge, charge.cost, number / 1_000)
    took.sort()
    p50, p99 = took[REQUESTS // 2], took[REQUESTS * 99 // 100]
    print(f"a decision: p50 {p50 * 1e6:.1f} us, p99 {p99 * 1e6:.1f} us; {len(meters)} meters")
    print(f"memory: {rss_mib() - before:.0f} MiB, of {sum(map(len, contents[0])) / 2**20:.1f} MiB of JSON")
    asyncio.run(edit_all())


async def edit_all() -> None:
    """Print how long an edit of all tenants takes to the gateways: compiled anew, and pushed over their links."""
    sources = [[_source(number, limit) for number in range(TENANTS)] for limit in (600, 700)]
    before = compile_tenants(KEY.namespace, sources[0], {}, NOW).shards
    with tempfile.TemporaryDirectory() as folder:
        keys = keys_in(Path(folder))
        async with operating(keys) as operator, contextlib.AsyncExitStack() as links:
            operator.server.set_tenants(KEY.namespace, before)
            tables = []
            for number in range(PROCESSES):
                gateway = await links.enter_async_context(linking(keys, operator.url, epoch=bytes([number]) * 16))
                table = Tenants(None, Path("/nonexistent"))
                gateway.shards = _Applied(table)
                tables.append(table)
            await until(lambda: all(len(table) == TENANTS for table in tables))
            began, used = time.perf_counter(), time.process_time()
            after = compile_tenants(KEY.namespace, sources[1], before, NOW).shards
            compiled = time.perf_counter()
            operator.server.set_tenants(KEY.namespace, after)
            wanted = tuple(after[place].generation for place in range(NUM_SHARDS))
            await until(lambda: all(table.generations == wanted for table in tables))
            took_s, used_s = time.perf_counter() - began, time.process_time() - used
    print(
        f"an edit of all at {PROCESSES} processes, one processor for all: {took_s:.2f} s, {used_s:.2f} s of processor"
        f" time; compiling: {compiled - began:.2f} s"
    )


class _Applied(list[bytes]):
    """Applies the shards that a link hands over."""

    def __init__(self, table: Tenants) -> None:
        super().__init__()
        self._table = table

    def append(self, content: bytes) -> None:
        self._table.take_content(content)


def _source(number: int, requests_per_minute: int) -> TenantSource:
    digest = hashlib.sha256(f"key-{number}".encode()).hexdigest()
    spec = {"apiKeys": [{"sha256": digest}], "limits": {"requestsPerMinute": requests_per_minute}}
    metadata = {"name": f"team-{number}", "namespace": KEY.namespace}
    fields = {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMTenant", "metadata": metadata, "spec": spec}
    return TenantSource(LLMTenant.model_validate(fields))


if __name__ == "__main__":
    main()
