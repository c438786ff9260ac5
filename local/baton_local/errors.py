"""Errors of the local runtime.

LocalError            one clear line for the user, non-zero exit
├── StartError      what was asked cannot run here: bad options, port taken, already running
└── NotRunningError   there is no running deployment to talk to
"""

from __future__ import annotations


class LocalError(Exception):
    """Base of every error that the command line shows as one line."""


class StartError(LocalError):
    """What the user asked for cannot be started on this machine as it is."""


class NotRunningError(LocalError):
    """No deployment of that name is running."""
