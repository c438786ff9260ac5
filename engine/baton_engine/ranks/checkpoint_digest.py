"""The files that ranks have read, compared: files that are replaced while ranks load would give each another model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.loading import RANDOM_SCHEME
from baton_engine.model.servable import CONFIG
from baton_engine.ranks.rank_frames import ShareLoaded
from baton_wire.models.errors import ModelError


def checkpoint_digest(model: str) -> str:
    """SHA-256 over the names, sizes and times of a model's files, hexadecimal. Raises ModelError."""
    if model.startswith(RANDOM_SCHEME):
        paths = [Path(model.removeprefix(RANDOM_SCHEME).partition("?")[0])]
    else:
        paths = [Path(model) / CONFIG, *find_checkpoint(Path(model)).paths]
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = path.stat()
        except OSError as error:
            raise ModelError(f"{path}: is gone while it was loaded: {error.strerror}") from error
        digest.update(f"{path.name} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def agreed_share(loaded: Sequence[ShareLoaded]) -> tuple[str, bool]:
    """The hash of the model that all ranks have loaded, and whether it generates. Raises ModelError if they differ."""
    first = loaded[0]
    for rank, other in enumerate(loaded):
        if (other.checkpoint, other.generates) != (first.checkpoint, first.generates):
            raise ModelError(f"rank {rank} read other files than rank 0: they were replaced while ranks loaded them")
    if first.model_hash is None:
        raise ModelError("rank 0 has no hash of the model")
    return first.model_hash, first.generates
