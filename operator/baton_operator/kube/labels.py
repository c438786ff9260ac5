"""The label, the annotations and the field manager that caches and watches themselves look at.

`objects.metadata` has the labels and annotations that only passes read.
"""

from __future__ import annotations

DEPLOYMENT_LABEL = "baton.dev/deployment"
"""On every object of Baton: the name of its LLMDeployment."""
FIELD_MANAGER = "baton-operator"
"""The name under which the operator owns fields of objects."""
ASSIGNED_ANNOTATION = "baton.dev/assigned"
"""On the Pod of a flexible worker: the operator gave it its role, which may differ from its template's."""
COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' own: among equal Pods a ReplicaSet stops the one with the lowest cost."""
