"""Who may ask and what is left, with 10,000 tenants: processor time of a decision, memory, time to take an edit of all.

python -m bench.serving.many_tenants
"""

from __future__ import annotations

import hashlib
import random
import resource
import time
from pathlib import Path

from baton_gateway.tenancy.tenant_meters import Charge, Cost, TenantMeters
from baton_gateway.tenancy.tenants import Tenants
from baton_wire.tenant_table import NUM_SHARDS, TenantKey, TenantLimits, TenantRow, TenantShard, encode_shard, shard_of

TENANTS, REQUESTS = 10_000, 100_000


def shards(generation: int) -> list[TenantShard]:
    """A table in which every tenant has a key and three limits."""
    rows: dict[int, list[TenantRow]] = {place: [] for place in range(NUM_SHARDS)}
    limits = TenantLimits(6_000 + generation, 1_000_000, 100_000)
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
    tenants, meters = Tenants(None, Path("/nonexistent")), TenantMeters()
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
        charge = meters.charge(tenant, Cost(1, 500, 100), number / 1_000)
        meters.remaining(tenant, number / 1_000)
        took.append(time.thread_time() - began)
        if isinstance(charge, Charge):
            meters.settle(charge, charge.cost, number / 1_000)
    took.sort()
    p50, p99 = took[REQUESTS // 2], took[REQUESTS * 99 // 100]
    print(f"a decision: p50 {p50 * 1e6:.1f} us, p99 {p99 * 1e6:.1f} us; {len(meters)} meters")
    print(f"memory: {rss_mib() - before:.0f} MiB, of {sum(map(len, contents[0])) / 2**20:.1f} MiB of JSON")


if __name__ == "__main__":
    main()
