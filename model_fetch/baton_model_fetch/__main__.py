"""`python -m baton_model_fetch --source=hf://ORG/NAME@COMMIT --cache=/cache --key=NAME`

`--credentials=FOLDER` has the credentials of the source; progress is written to `--progress=FILE`.

Exit status: 0 the model is in the cache · 3 refused, trying again will not help · 1 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

from baton_model_fetch.cache_volume import ModelFolder
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.errors import Busy, FetchError, SourceRefused, VolumeRefused
from baton_model_fetch.fetching import Watch, fetch
from baton_model_fetch.file_system import explain
from baton_model_fetch.progress import write
from baton_wire.log_format import chosen_format, configure_logging

_log = logging.getLogger("baton.fetch")

REFUSED = 3
"""Exit status; the Job's failure policy knows it too."""
TURN_S, LOOK_S = 6 * 3600.0, 15.0
"""Longest wait for another process that fetches the same model, and the time between two looks. A failed try instead
would look like a fault, and a Job has few tries."""
_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class _FileProgress(Watch):
    """Reports progress to the log, and to a file where one is given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def on_progress(self, have: int, total: int, seconds: float) -> None:
        super().on_progress(have, total, seconds)
        if self._path is not None:
            with suppress(OSError):  # the fetch needs no progress file to go on
                write(self._path, have, total)


async def _fetch_in_turn(source: str, cache: ModelFolder, credentials: Credentials, watch: Watch) -> None:
    """Fetch the model, after another process that fetches the same one into a shared cache. Raises FetchError,
    OSError."""
    until = time.monotonic() + TURN_S
    while True:
        try:
            return await fetch(source, cache, credentials, watch)
        except Busy as error:
            if time.monotonic() >= until:
                raise
            _log.info("%s: waiting for it", error)
            await asyncio.sleep(LOOK_S)


def main(arguments: list[str] | None = None) -> int:
    """Fetch one model. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m baton_model_fetch", description=__doc__, allow_abbrev=False)
    parser.add_argument("--source", required=True)
    parser.add_argument("--cache", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--key", required=True, help="the model's folder in the cache")
    parser.add_argument("--credentials", type=Path, metavar="FOLDER")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="file for the progress, in bytes")
    options = parser.parse_args(arguments)
    try:
        configure_logging(logging.INFO, chosen_format(None, os.environ))
    except ValueError as error:
        parser.error(str(error))
    if _KEY.fullmatch(options.key) is None:
        parser.error(f"--key: {options.key!r} is not allowed: must be lower-case letters, digits and '-'")
    cache = ModelFolder(options.cache, options.key)
    try:
        credentials = Credentials(options.credentials)
        asyncio.run(_fetch_in_turn(options.source, cache, credentials, _FileProgress(options.progress)))
    except (SourceRefused, VolumeRefused) as error:
        _log.error("refused: %s", error)
        return REFUSED
    except FetchError as error:
        _log.error("failed: %s", error)
        return 1
    except OSError as error:
        is_refusal, text = explain(error, cache.draft)
        _log.error("%s: %s", "refused" if is_refusal else "failed", text)
        return REFUSED if is_refusal else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
