"""The user and groups that Pods run as, which an installation can leave to the namespace.

OpenShift gives each namespace a range of ids and refuses Pods with others. An id that is left out is the namespace's,
or else the image's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton_operator.kube.object_fields import Manifest

USER = 10_001
"""The user of the images and the group of its files."""
_Id = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class PodIds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The ids of all Pods of deployments; None: left out."""

    run_as_user: _Id | None = USER
    run_as_group: _Id | None = USER
    fs_group: _Id | None = USER

    def security_context(self) -> Manifest:
        """The security context of a Pod."""
        ids = {"runAsUser": self.run_as_user, "runAsGroup": self.run_as_group, "fsGroup": self.fs_group}
        context: Manifest = {"runAsNonRoot": True, **{name: number for name, number in ids.items() if number}}
        if self.fs_group is not None:
            context["fsGroupChangePolicy"] = "OnRootMismatch"
        return context | {"seccompProfile": {"type": "RuntimeDefault"}}


DEFAULT_IDS = PodIds()


def parse_pod_ids(text: str) -> PodIds:
    """The ids in a JSON object; an absent one is the default, null is left out. Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=PodIds)
    except msgspec.DecodeError as error:
        raise ValueError(f"--security-context: {error}") from error
