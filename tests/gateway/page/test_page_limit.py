"""The answer to what limits late requests: the place, the pool that was waited for, the tenant, and errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from baton_gateway.page.page_document import limited_by
from baton_gateway.records.parts import Part
from baton_gateway.records.request_record import RecordSpan, RequestRecord
from baton_gateway.requests.held_runs import DECODE_BUSY, OWN_SHARE, PREFILL_BUSY

NOW_S = 1e9
LATE = RequestRecord(
    *("r", "blue", "m", "finished", "", NOW_S - 5, 100, [], [], 1, 1),
    *(None, None, None, None, None, True, [], 0, 0.1),
)


def late(part: Part, detail: str = "", **changes: Any) -> RequestRecord:
    """A late request that waited for one thing."""
    return msgspec.structs.replace(LATE, spans=[RecordSpan(part.value, 0, 100, detail)], **changes)


@pytest.mark.parametrize(
    ("part", "detail", "place"),
    [
        (Part.HELD, PREFILL_BUSY, "prefill"),
        (Part.HELD, DECODE_BUSY, "decode"),
        (Part.HELD, OWN_SHARE, "workers"),
        (Part.PARKED, "no decode worker is live", "decode"),
        (Part.PARKED, "", "workers"),
        (Part.QUEUED, "its tenant's own quota", "gateway"),
        (Part.WORKER_SILENT, "", "workers"),
    ],
)
def test_a_wait_for_a_pool_is_counted_at_that_pool(part: Part, detail: str, place: str) -> None:
    limit = limited_by([late(part, detail)], NOW_S)
    assert limit is not None
    assert (limit["place"], limit["detail"], limit["part"]) == (place, detail, part)


def test_the_tenant_and_the_error_that_most_have_are_named() -> None:
    records = [
        late(Part.QUEUED),
        late(Part.QUEUED, code="rate_limited", outcome="refused"),
        late(Part.QUEUED, code="rate_limited", outcome="refused", tenant="red"),
    ]
    limit = limited_by(records, NOW_S)
    assert limit is not None
    assert (limit["tenant"], limit["errors"], limit["code"]) == ("blue", 2, "rate_limited")
    shared = limited_by([late(Part.QUEUED), late(Part.QUEUED, tenant="red")], NOW_S)
    assert shared is not None
    assert (shared["tenant"], shared["errors"], shared["code"]) == (None, 0, None)
