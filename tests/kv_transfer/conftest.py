"""A prefill and a decode worker's transfer, with one key directory, that run while a test does."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_testing.kv_transfer.builders import key_directory
from baton_testing.kv_transfer.transfer_pair import Pair, pairs


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return pairs(key_directory(tmp_path / "keys"))
