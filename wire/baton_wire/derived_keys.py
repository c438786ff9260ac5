"""Link keys that follow from a master key and the uid of a deployment. Nothing has to be stored or read.

A deployment's key is HMAC-SHA256(master, "baton link key" ‖ uid): the same again after a restart of the operator, a
different one for a deployment of the same name made later, and of no use to learn another deployment's key. Rotating
means to add a master key, wait until every process has read the new set, and drop the old one; nothing restarts.
"""

from __future__ import annotations

import hashlib
import hmac

MIN_MASTER_BYTES = 32
_PURPOSE = b"baton link key\0"


def derived_key(master: bytes, uid: str) -> str:
    """The link key of the deployment with that uid, as 64 hex digits. Raises ValueError for a short master key."""
    if len(master) < MIN_MASTER_BYTES:
        raise ValueError(f"a master key has {len(master)} bytes: must be at least {MIN_MASTER_BYTES}")
    return hmac.new(master, _PURPOSE + uid.encode(), hashlib.sha256).hexdigest()
