"""The wall clock of the API server, as its answers tell it: what objects say of times is compared with that one.

A process whose own clock is minutes off would take new Pods for old ones, or wait for years of theirs. Two clocks that
nearly agree are taken for one. Between answers time goes by the monotonic clock: when somebody sets this machine's
clock, nothing has become an hour older.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)
SLACK_S = 5.0
"""Answers say whole seconds, and take time to come: less than this is no difference."""


class ServerClock:
    """`own`: the wall clock of this process, which is read once. `monotonic`: in seconds."""

    def __init__(self, own: Callable[[], datetime.datetime], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._began, self._began_s, self._monotonic = own(), monotonic(), monotonic
        self.ahead_s = 0.0
        """How far the server's clock is ahead of our own; below zero: behind it."""
        self._last = ""

    def read_date(self, date: str) -> None:
        """The `Date` of an answer; what is no date says nothing."""
        if date == self._last:
            return
        self._last = date
        try:
            server_time = parsedate_to_datetime(date)
            ahead_s = (server_time - self._here()).total_seconds()
        except (ValueError, TypeError):
            return
        ahead_s = ahead_s if abs(ahead_s) > SLACK_S else 0.0
        if abs(ahead_s - self.ahead_s) > SLACK_S or not ahead_s:
            if ahead_s and not self.ahead_s:
                log.warning("the API server's clock is %.0f s ahead of this one: its time is taken", ahead_s)
            self.ahead_s = ahead_s

    def now(self) -> datetime.datetime:
        return self._here() + datetime.timedelta(seconds=self.ahead_s)

    def _here(self) -> datetime.datetime:
        return self._began + datetime.timedelta(seconds=self._monotonic() - self._began_s)
