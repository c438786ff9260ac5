"""The keys of internal links, derived from the operator's master keys, so that no Secret ever has to be read."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from baton_control.names import keys_name
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.object_fields import Manifest, mappings, metadata_of
from baton_operator.objects.cluster import Owner
from baton_operator.objects.metadata import object_head
from baton_wire.keys import derived_key


def key_marker(secret: Manifest, uid: str) -> Manifest:
    """The marker of a stored key Secret with that uid: an object that only the Secret owns. Secrets are never read, but
    markers are. When the Secret is deleted, the garbage collector deletes the marker, and a watch reports that."""
    metadata = metadata_of(secret)
    reference = {"apiVersion": "v1", "kind": "Secret", "name": metadata["name"], "uid": uid}
    metadata_kept = {name: metadata[name] for name in ("name", "namespace", "labels")}
    marker: Manifest = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 0, "data": {}}
    return marker | {"metadata": {**metadata_kept, "ownerReferences": [reference]}}


def is_key_marker(live: Manifest) -> bool:
    """True if a live object is the marker of an existing Secret."""
    return any(reference.get("kind") == "Secret" for reference in mappings(metadata_of(live).get("ownerReferences")))


def key_secret(deployment: LLMDeployment, owner: Owner, masters: Mapping[str, bytes]) -> Manifest:
    """The Secret with one link key for each master key, under the master key's id. Raises ValueError without any."""
    if not masters:
        raise ValueError("there is no master key")
    keys = {name: derived_key(master, owner.uid).encode() for name, master in masters.items()}
    data = {name: base64.b64encode(key).decode() for name, key in sorted(keys.items())}
    secret = object_head("v1", "Secret", keys_name(deployment.metadata.name), deployment, owner)
    return secret | {"type": "Opaque", "data": data}
