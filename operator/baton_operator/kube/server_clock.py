"""The wall clock of the API server, from the `Date` of its answers. Timestamps in objects are compared with it.

A process whose own clock is minutes off would take new Pods for old ones, or wait far too long. Clocks that differ by
less than SLACK_S count as equal. Between answers the monotonic clock runs on, so that setting this machine's clock
makes nothing an hour older.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)
SLACK_S = 5.0
"""A smaller difference counts as none: dates are in whole seconds, and answers take time."""


class ServerClock:
    """The server's wall clock. `own`: the wall clock of this process, which is read once. `monotonic`: in seconds."""

    def __init__(self, own: Callable[[], datetime.datetime], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._began, self._began_s, self._monotonic = own(), monotonic(), monotonic
        self.ahead_s = 0.0
        """Seconds by which the server's clock is ahead of ours; negative: behind."""
        self._last = ""

    def read_date(self, date: str) -> None:
        """Take over the `Date` of an answer; another text changes nothing."""
        if date == self._last:
            return
        self._last = date
        try:
            server_time = parsedate_to_datetime(date)
            ahead_s = (server_time - self._own_now()).total_seconds()
        except (ValueError, TypeError):
            return
        ahead_s = ahead_s if abs(ahead_s) > SLACK_S else 0.0
        if abs(ahead_s - self.ahead_s) > SLACK_S or not ahead_s:
            if ahead_s and not self.ahead_s:
                log.warning("the API server's clock is %.0f s ahead of this one and is used instead", ahead_s)
            self.ahead_s = ahead_s

    def now(self) -> datetime.datetime:
        return self._own_now() + datetime.timedelta(seconds=self.ahead_s)

    def _own_now(self) -> datetime.datetime:
        return self._began + datetime.timedelta(seconds=self._monotonic() - self._began_s)
