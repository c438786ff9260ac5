"""The tokenizer bundle: the files that turn text into token ids and back, as the gateway gets them from the workers.

A JSON object of file name → content (or null), encoded with sorted keys so that equal files give equal bytes and hence
an equal hash on every worker of a revision. Nothing in it is executed here; the gateway renders templates in a sandbox.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from baton_engine.model.model_directory import model_file
from baton_wire.messages.gateway_link import MAX_BUNDLE_BYTES
from baton_wire.models.errors import ModelError
from baton_worker.errors import ConfigError

REQUIRED = ("tokenizer.json", "config.json")
OPTIONAL = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json", "special_tokens_map.json")
OLDER_TEMPLATE = "chat_template.json"
"""Template file of older models for images and text. Bundles of other models do not name it, to keep their hash."""
POOLING = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json")
"""Files of embedding models. Workers whose files differ pool differently, so they must not be of one revision."""


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    data: bytes
    sha256: str

    def files(self) -> dict[str, str | None]:
        """Contents by name; None: the model has no such file."""
        files: dict[str, str | None] = json.loads(self.data)
        return files


def read_bundle(model_dir: Path) -> TokenizerBundle:
    """Read the bundle of a model directory.

    Raises ConfigError when a required file is missing, or one is not UTF-8, not JSON, too large, or a link out of it.
    """
    files: dict[str, str | None] = {}
    for name in (*REQUIRED, *OPTIONAL, OLDER_TEMPLATE, *POOLING):
        try:
            path = model_file(model_dir, name)
        except ModelError as error:
            raise ConfigError(f"model: {error}") from error
        if path is None:
            if name in REQUIRED:
                raise ConfigError(f"model: {model_dir} has no {name}")
            if name in OPTIONAL:
                files[name] = None
            continue
        files[name] = _read_text(path)
    data = json.dumps(files, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    if len(data) > MAX_BUNDLE_BYTES:
        raise ConfigError(f"model: the tokenizer files take {len(data)} bytes, more than {MAX_BUNDLE_BYTES}")
    return TokenizerBundle(data, hashlib.sha256(data).hexdigest())


def _read_text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MAX_BUNDLE_BYTES:
            raise ConfigError(f"model: {path} has {size} bytes, more than {MAX_BUNDLE_BYTES}")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"model: {path}: {error}") from error
    return text
