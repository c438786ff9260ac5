"""The mark of tests that need the real UCX library. Without it they skip and say how to get it."""

from __future__ import annotations

import pytest

from baton_kv_transfer.transports.ucx import binding as ucx

NEEDS_UCX = pytest.mark.skipif(
    not ucx.is_installed(), reason="NIXL is not installed: pip install 'baton-serving[ucx]' to test the ucx transport"
)
