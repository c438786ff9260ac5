"""Errors of a worker process. What the caller does follows from the type.

WorkerError
└── ConfigError  a flag, a key directory or a model cannot be used: print its one line, exit with status 2
"""

from __future__ import annotations


class WorkerError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(WorkerError):
    """Configuration that cannot work; the message is one line that names the flag, the value and what is allowed."""
