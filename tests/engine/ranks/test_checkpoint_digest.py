"""Files that ranks have read: the same at every rank, or refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from baton_engine.ranks.checkpoint_digest import agreed_share, checkpoint_digest
from baton_engine.ranks.rank_frames import ShareLoaded
from baton_testing.engine.tiny_llama import FOLDER
from baton_wire.models.errors import ModelError


def test_a_digest_changes_with_any_file_that_is_replaced(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(FOLDER, model)
    digests = [checkpoint_digest(str(model))]
    assert checkpoint_digest(str(model)) == digests[0]
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model / name, model / "new")
        os.replace(model / "new", model / name)
        digests.append(checkpoint_digest(str(model)))
    assert len(set(digests)) == 3


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: is gone"):
        checkpoint_digest(f"random://{tmp_path}/config.json?seed=3")


def test_a_rank_that_read_other_files_is_refused_by_number() -> None:
    same, other = ShareLoaded("a", None, True), ShareLoaded("b", None, True)
    first = ShareLoaded("a", "c" * 64, True)
    assert agreed_share([first, same]) == ("c" * 64, True)
    with pytest.raises(ModelError, match="rank 2 read other files than rank 0"):
        agreed_share([first, same, other])
