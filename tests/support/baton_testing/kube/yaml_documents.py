"""YAML of charts and definitions, thousands of lines at a time: by libyaml, faster than `safe_load_all`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from yaml import CSafeLoader


def documents(text: str) -> Iterator[Any]:
    """As of `yaml.safe_load_all`. Raises yaml.YAMLError."""
    loader: Any = CSafeLoader(text)
    try:
        while loader.check_data():
            yield loader.get_data()
    finally:
        loader.dispose()
