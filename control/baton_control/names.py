"""Names of the objects of an LLMDeployment, derived from its name; no other module of Baton builds a name.

A deployment's name has at most 36 characters, so that each derived name stays a DNS label of at most 63.
"""

from __future__ import annotations

from typing import NamedTuple

from baton_wire.messages.values import Role


class Key(NamedTuple):
    """Namespace and name of an LLMDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pool_name(deployment: str, role: Role) -> str:
    """The pool's name, stable over revisions: `chat-prefill`."""
    return f"{deployment}-{role}"


def workers_name(deployment: str, role: Role, template_hash: str) -> str:
    """The name of the group of workers with one template: `chat-prefill-1f3a5c7e90`."""
    return f"{pool_name(deployment, role)}-{template_hash}"


def flexible_name(deployment: str, template_hash: str) -> str:
    """The name of the group of workers with one template that serve in either pool: `chat-flexible-1f3a5c7e90`."""
    return f"{deployment}-flexible-{template_hash}"


def worker_name(deployment: str, role: Role, template_hash: str, ordinal: int) -> str:
    """The name of one worker of the group.

    >>> worker_name("chat", Role.PREFILL, "1f3a5c7e90", 0)
    'chat-prefill-1f3a5c7e90-0'
    """
    return f"{workers_name(deployment, role, template_hash)}-{ordinal}"


def gateway_name(deployment: str) -> str:
    """The gateway's name: `chat-gateway`."""
    return f"{deployment}-{Role.GATEWAY}"


def keys_name(deployment: str) -> str:
    """The name of the Secret with the link keys: `chat-keys`."""
    return f"{deployment}-keys"


def record_name(deployment: str, content: str) -> str:
    """The name of a record of rendered templates, by the hash of its content: `chat-templates-1f3a5c7e90`."""
    return f"{deployment}-templates-{content}"


def history_name(deployment: str) -> str:
    """The name of the object with what changed lately: `chat-history`."""
    return f"{deployment}-history"


def cache_name(deployment: str) -> str:
    """The name of the volume claim for fetched models: `chat-models`."""
    return f"{deployment}-models"


def fetch_account_name(deployment: str) -> str:
    """The name of the ServiceAccount of the deployment's fetch Jobs, and the prefix of their names: `chat-fetch`."""
    return f"{deployment}-fetch"


def fetch_name(deployment: str, template_hash: str) -> str:
    """The name of a fetch Job: `chat-fetch-1f3a5c7e90`."""
    return f"{fetch_account_name(deployment)}-{template_hash}"
