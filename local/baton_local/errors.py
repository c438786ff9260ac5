"""Errors of the local runtime.

LocalError            one clear line for the user, non-zero exit
├── StartError        the command cannot run here: bad options, port taken, already running
└── NotRunningError   there is no running deployment to talk to

OutputClosedError     nobody reads standard output any more: the command ends silently
"""

from __future__ import annotations


class LocalError(Exception):
    """Base of every error that the command line shows as one line."""


class StartError(LocalError):
    """The command cannot run on this machine with these options."""


class NotRunningError(LocalError):
    """No deployment of that name is running."""


class OutputClosedError(Exception):
    """Nobody reads standard output any more, which no client of a network takes for its own broken connection."""
