"""The weight files of a model directory, chosen by names alone, and the hash of their content.

Only safetensors, only inside the directory: nothing is ever unpickled, and neither an index nor a link can name a file
elsewhere. Opening and checking the tensors is `weights.py`'s business.
"""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton_engine.model.errors import WeightsError
from baton_engine.model.model_directory import outside, read_json_object
from baton_wire.models.config_fields import JsonObject

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
ADAPTER: Final = "adapter_config.json"
REFUSED_SUFFIXES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".gguf", ".npy", ".npz", ".h5", ".msgpack")
NOT_A_MODEL: Final = ("consolidated", "adapter", "model-")
"""Starts of names: Mistral's own layout, adapters, and a shard whose index is gone."""
_VOLATILE_KEYS: Final = ("transformers_version", "_name_or_path")
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Weight files in name order, and for each tensor of the index (if there is one) the file that must hold it."""

    paths: tuple[Path, ...]
    index: dict[str, str]


def find_checkpoint(directory: Path) -> CheckpointFiles:
    """The weight files of a directory: model.safetensors, else the shards of its index, else the only safetensors file,
    whatever its name. Raises WeightsError."""
    if (directory / SINGLE).exists():
        return CheckpointFiles((_inside(directory, SINGLE),), {})
    if (directory / INDEX).exists():
        index = _read_index(_inside(directory, INDEX))
        return CheckpointFiles(tuple(_inside(directory, name) for name in sorted(set(index.values()))), index)
    if (only := _only(directory)) is not None:
        return CheckpointFiles((_inside(directory, only),), {})
    raise WeightsError(f"{directory}: {_what_is_missing(directory)}")


class ContentHash:
    """`content_hash`, computed by a thread of its own: a core hashes some 1.5 GB a second, and reads go on meanwhile.

    The thread is a daemon: a worker that cannot start does not wait for it.
    """

    def __init__(self, config: JsonObject, paths: tuple[Path, ...], is_urgent: bool = True) -> None:
        """`is_urgent` False: nothing is read until the hash is asked for."""
        self._digest: Future[str] = Future()
        self._thread = threading.Thread(target=self._compute, args=(config, paths), name="content hash", daemon=True)
        if is_urgent:
            self._thread.start()

    def hexdigest(self) -> str:
        """Wait until all files are read. Raises WeightsError when one cannot be read."""
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join()
        return self._digest.result(0)

    @property
    def is_known(self) -> bool:
        return self._digest.done()

    def _compute(self, config: JsonObject, paths: tuple[Path, ...]) -> None:
        try:
            self._digest.set_result(content_hash(config, paths))
        except OSError as error:
            self._digest.set_exception(WeightsError(f"weights cannot be read to their end: {error}"))


def content_hash(config: JsonObject, paths: tuple[Path, ...]) -> str:
    """SHA-256 over the canonical config and the content of the weight files in name order, hexadecimal.

    Fields of the config that only record its author are left out, and so are file names: a renamed copy is the same
    model.
    """
    stable = {key: value for key, value in config.items() if key not in _VOLATILE_KEYS}
    digest = hashlib.sha256(json.dumps(stable, sort_keys=True, separators=(",", ":")).encode())
    for path in paths:
        with path.open("rb") as file:
            digest.update(path.stat().st_size.to_bytes(8, "little"))
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path.name}: weight_map must be a non-empty object of tensor name to shard file")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise WeightsError(
                f"{path.name}: weight_map[{tensor!r}]: {shard!r} is refused; allowed: only safetensors files"
            )
    return weight_map


def _inside(directory: Path, name: str) -> Path:
    """Path of a file of the directory. Raises WeightsError when its name or a link leads out of it or it is missing."""
    if Path(name).name != name or name in (".", ".."):
        raise WeightsError(f"{name!r}: shard names are plain file names; a path out of the model directory is refused")
    path = directory / name
    if (target := outside(directory, name)) is not None:
        raise WeightsError(f"{name}: is a link to {target}, outside the model directory, which is refused")
    if not path.is_file():
        raise WeightsError(f"{name}: named by {INDEX} but missing from {directory}")
    return path


def _only(directory: Path) -> str | None:
    """AutoGPTQ names its file by bits and group. Files of other layouts and adapters are not a model's."""
    names = [path.name for path in directory.glob("*.safetensors") if not path.name.startswith(NOT_A_MODEL)]
    return names[0] if len(names) == 1 else None


def what_it_is(directory: Path) -> str:
    """The content of a directory without config.json in words, with what to do about it."""
    return (
        foreign_format(directory) or "no config.json: a model is a folder with config.json, safetensors and tokenizer"
    )


def foreign_format(directory: Path) -> str | None:
    """The format of a directory's weights if it is not served, with what to do; None: it is no known other one."""
    names = sorted(path.name for path in directory.iterdir())
    gguf = [name for name in names if name.endswith(".gguf")]
    if ADAPTER in names:
        return (
            f"{ADAPTER}: this is a LoRA adapter, which is not applied; merge it into its base model "
            "(peft: model.merge_and_unload(), then save_pretrained) and serve the merged folder"
        )
    if gguf and not any(name.endswith(".safetensors") for name in names):
        return (
            f"{gguf[0]}: GGUF is not read; serve the model's original folder or repository in safetensors, "
            "and make it small with `baton quantise --format int4`"
        )
    return None


def _what_is_missing(directory: Path) -> str:
    if (foreign := foreign_format(directory)) is not None:
        return foreign
    refused = sorted(path.name for path in directory.iterdir() if path.suffix in REFUSED_SUFFIXES)
    if refused:
        return (
            f"refused: only safetensors weights are loaded, found {', '.join(refused[:4])}; convert them where you "
            "trust them (transformers: model.save_pretrained(folder, safe_serialization=True))"
        )
    other = sorted(path.name for path in directory.iterdir() if path.suffix == ".safetensors")
    others = f"; found {', '.join(other[:4])}" if other else ""
    return f"no weights: neither {SINGLE} nor {INDEX} exists{others}"
