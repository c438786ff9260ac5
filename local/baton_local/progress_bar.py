"""Progress on standard error: a bar on a terminal, an occasional line in a log. The last state stays visible.

tqdm formats both; this module decides when a line is written.
"""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

PROGRAM = "baton"
LOG_EVERY_S = 10.0
BAR_EVERY_S = 0.1


class ProgressBar:
    """A progress bar. `unit`: the counted thing; bytes are shown in powers of 1024. Leaving the context writes the last
    state."""

    def __init__(self, what: str, total: int, unit: str, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._what, self._total = what, total
        self._scale: dict[str, Any] = {"unit": unit}
        if unit == "B":
            self._scale |= {"unit_scale": True, "unit_divisor": 1024}
        self._began_s = self._shown_s = time.monotonic()
        self._initial: int | None = None
        self._done, self._note = 0, ""
        self._bar = (
            tqdm(desc=what, total=total, file=self._stream, dynamic_ncols=True, mininterval=BAR_EVERY_S, **self._scale)
            if self._stream.isatty()
            else None
        )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def at(self, done: int, note: str = "") -> None:
        """Set the progress. The first call sets the initial state, which does not count for the speed."""
        if self._initial is None:
            self._initial = done
            if self._bar is not None:
                self._bar.initial = done
        self._done, self._note = done, note
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
        elif now - self._shown_s >= LOG_EVERY_S:
            self._shown_s = now
            self._say(now)

    def close(self) -> None:
        """Write the last state and end the line."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
        elif self._initial is not None:
            self._say(time.monotonic())

    def _say(self, now: float) -> None:
        line = tqdm.format_meter(
            self._done, self._total, now - self._began_s, prefix=self._what, postfix=self._note,
            initial=self._initial or 0, bar_format="{desc}: {percentage:3.0f} %, {n_fmt} of {total_fmt}, "
            "{rate_fmt}, {remaining} left{postfix}", **self._scale,
        )  # fmt: skip
        with contextlib.suppress(OSError):  # standard error may be closed
            print(line if self._what == PROGRAM else f"{PROGRAM}: {line}", file=self._stream, flush=True)
