"""The keys of internal links: derived from the operator's master keys, so that no Secret ever has to be read."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from baton_control.names import keys_name
from baton_control.spec.api import LLMDeployment
from baton_operator.objects.cluster import Manifest, Owner
from baton_operator.objects.metadata import owned
from baton_wire.keys import derived_key


def key_secret(deployment: LLMDeployment, owner: Owner, masters: Mapping[str, bytes]) -> Manifest:
    """The Secret with one link key for each master key, under the master key's id. Raises ValueError without any."""
    if not masters:
        raise ValueError("there is no master key")
    keys = {name: derived_key(master, owner.uid).encode() for name, master in masters.items()}
    data = {name: base64.b64encode(key).decode() for name, key in sorted(keys.items())}
    secret = owned("v1", "Secret", keys_name(deployment.metadata.name), deployment, owner)
    return secret | {"type": "Opaque", "data": data}
