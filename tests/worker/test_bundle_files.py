"""The files that a worker sends to gateways: those of its model directory, and no others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from baton_engine.model.model_directory import read_spec
from baton_wire.models.errors import ModelError
from baton_worker.building import bundle_files
from baton_worker.building.bundle_files import OLDER_TEMPLATE, OPTIONAL, REQUIRED, read_bundle
from baton_worker.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in REQUIRED + OPTIONAL:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("name", [*REQUIRED, *OPTIONAL, OLDER_TEMPLATE])
def test_a_link_out_of_the_directory_is_never_sent(model: Path, name: str) -> None:
    secret = model.parent / "secret.json"
    secret.write_text('{"token": "INTERNAL"}')
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(secret)
    with pytest.raises(ConfigError, match=f"model: {name}: is a link to .*secret.json, outside the model directory"):
        read_bundle(model)


def test_a_link_through_a_folder_out_of_the_directory_is_never_sent(model: Path) -> None:
    (model.parent / "other").mkdir()
    (model.parent / "other" / "config.json").write_text("{}")
    (model / "folder").symlink_to(model.parent / "other")
    (model / "config.json").unlink()
    (model / "config.json").symlink_to(Path("folder") / "config.json")
    with pytest.raises(ConfigError, match="outside the model directory"):
        read_bundle(model)


def test_a_link_that_stays_inside_is_read(model: Path) -> None:
    """As volumes of Kubernetes have them."""
    (model / "..data").mkdir()
    (model / "..data" / "config.json").write_text('{"a": 1}')
    (model / "config.json").unlink()
    (model / "config.json").symlink_to(Path("..data") / "config.json")
    assert json.loads(json.loads(read_bundle(model).data)["config.json"]) == {"a": 1}


def test_the_older_template_file_is_named_only_where_it_is(model: Path) -> None:
    """So that bundles of models without it keep their hash, and workers of two versions pair."""
    assert OLDER_TEMPLATE not in read_bundle(model).files()
    (model / OLDER_TEMPLATE).write_text('{"chat_template": "x"}')
    assert read_bundle(model).files()[OLDER_TEMPLATE] == '{"chat_template": "x"}'


def test_a_linked_model_directory_is_its_own_border(model: Path) -> None:
    link = model.parent / "link"
    link.symlink_to(model)
    assert read_bundle(link) == read_bundle(model)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_the_configuration_is_not_read_through_a_link_either(model: Path, name: str) -> None:
    (model.parent / "secret.json").write_text('{"architectures": ["Secret"]}')
    (model / name).unlink()
    (model / name).symlink_to(model.parent / "secret.json")
    with pytest.raises(ModelError, match="outside the model directory"):
        read_spec(model)


def test_what_is_no_file_or_far_too_large_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_files, "MAX_BUNDLE_BYTES", 1_000)
    (model / "tokenizer.json").write_text(json.dumps("x" * 2_000))
    with pytest.raises(ConfigError, match=r"tokenizer\.json has 2002 bytes, more than 1000"):
        read_bundle(model)
    (model / "tokenizer.json").write_text("[" * 900)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        read_bundle(model)
    (model / "tokenizer.json").unlink()
    os.mkfifo(model / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        read_bundle(model)
