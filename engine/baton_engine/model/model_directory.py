"""The border of a model directory: no file that is read as a part of the model lies outside of it.

Weights, configuration, tokenizer and template are sent on, to gateways and from there to clients. A link in a directory
that somebody else filled could name any file that the worker may read.
"""

from __future__ import annotations

from pathlib import Path

from baton_engine.model.errors import ModelConfigError


def outside(directory: Path, name: str) -> Path | None:
    """Where a link leads that stands for a file of the directory and leaves it; None when the file is inside."""
    found = (directory / name).resolve()
    return None if found.is_relative_to(directory.resolve()) else found


def model_file(directory: Path, name: str) -> Path | None:
    """A file of the directory; None when it has none of that name. Raises ModelConfigError for a link out of it."""
    path = directory / name
    if path.is_symlink() and (target := outside(directory, name)) is not None:
        raise ModelConfigError(f"{name}: is a link to {target}, outside the model directory, which is refused")
    return path if path.is_file() else None
