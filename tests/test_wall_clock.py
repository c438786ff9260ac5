"""The wall clock may be set at any time, by hours and in both directions. So it is read where people or other machines
read what it says, and nowhere to measure how long something took or how long something may take."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
READS = re.compile(r"\btime\.time\(|\btime_ns\(|\bdatetime\.(?:now|utcnow|today)\(|\bdate\.today\(")
WHY = {
    "gateway/baton_gateway/batches/batch_desk.py": "the expiry of files, which are kept over restarts",
    "gateway/baton_gateway/batches/batch_store.py": "`created_at` of batches",
    "gateway/baton_gateway/batches/file_store.py": "`created_at` and expiry of files",
    "local/baton_local/kubectl/cluster_page.py": "the time of day of the page's data, to be shown",
    "local/baton_local/kubectl/__main__.py": "how long ago a change was, which has the time of day",
    "gateway/baton_gateway/http_api/lookups.py": "`created` of models",
    "gateway/baton_gateway/http_api/routes.py": "`expires` of keys and tokens, which are times of day",
    "gateway/baton_gateway/tenancy/process_limits.py": "the calendar month of saved counts",
    "gateway/baton_gateway/page/page_desk.py": "the time of day of the page's data, to be shown",
    "local/baton_local/argument_types.py": "days, and how long ago something was, which have the time of day",
    "local/baton_local/commands/history.py": "how long ago a change was, which has the time of day",
    "gateway/baton_gateway/requests/prompt_builder.py": "`created` of answers",
    "gateway/baton_gateway/requests/record_keeping.py": "the time of day at which a request came, to be shown",
    "gateway/baton_gateway/server.py": "`at_s` of a summary, which nobody compares",
    "gateway/baton_gateway/text/chat_template.py": "`strftime_now` of chat templates",
    "local/baton_local/batch/engine_batch.py": "`created` of answers",
    "local/baton_local/fetching/model_cache.py": "times of files, kept in order where the clock is set back",
    "local/baton_local/commands/up.py": "the age of run folders, which are files",
    "local/baton_local/fleet/local_tenants.py": "generations of tables, which only have to grow",
    "local/baton_local/fleet/local_runtime.py": "the age of a log's last line, which is a file's",
    "local/baton_local/fleet/pool_scaling.py": "schedules, and the age of what sizing remembers over a restart",
    "model_fetch/baton_model_fetch/fetching.py": "signatures for a bucket",
    "operator/baton_operator/kube/http_client.py": "the server clock's beginning",
    "operator/baton_operator/kube/lease.py": "`renewTime`, which nobody compares",
    "operator/baton_operator/runtime.py": "a default; the process gives it the server's clock",
}
"""The files that read it, and what for."""


def test_the_wall_clock_is_read_where_its_time_is_shown_and_nowhere_to_measure() -> None:
    files = (path for path in ROOT.glob("*/baton_*/**/*.py") if "tests" not in path.parts)
    readers = {str(path.relative_to(ROOT)) for path in files if READS.search(path.read_text(encoding="utf-8"))}
    assert readers == WHY.keys()
