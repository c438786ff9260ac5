"""The keys of internal links: derived from the operator's master keys, so that no Secret ever has to be read.

A deployment's key is HMAC-SHA256(master, "baton link key" ‖ uid): the same again after a restart of the operator, a
different one for a deployment of the same name made later, and of no use to learn another deployment's key. Rotating
means to add a master key, wait until every process has read the new set, and drop the old one; nothing restarts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from baton_operator.api import LLMDeployment
from baton_operator.names import keys_name
from baton_operator.objects.cluster import Manifest, Owner
from baton_operator.objects.metadata import owned

MIN_MASTER_BYTES = 32
_PURPOSE = b"baton link key\0"


def derived_key(master: bytes, uid: str) -> str:
    """The link key of the deployment with that uid, as 64 hex digits. Raises ValueError for a short master key."""
    if len(master) < MIN_MASTER_BYTES:
        raise ValueError(f"a master key has {len(master)} bytes: must be at least {MIN_MASTER_BYTES}")
    return hmac.new(master, _PURPOSE + uid.encode(), hashlib.sha256).hexdigest()


def key_secret(deployment: LLMDeployment, owner: Owner, masters: Mapping[str, bytes]) -> Manifest:
    """The Secret with one link key for each master key, under the master key's id. Raises ValueError without any."""
    if not masters:
        raise ValueError("there is no master key")
    keys = {name: derived_key(master, owner.uid).encode() for name, master in masters.items()}
    data = {name: base64.b64encode(key).decode() for name, key in sorted(keys.items())}
    secret = owned("v1", "Secret", keys_name(deployment.metadata.name), deployment, owner)
    return secret | {"type": "Opaque", "data": data}
