"""The LLMDeployment as typed values: fields, bounds, scalar types, model sources, and the strict parser of manifests.

Owns the fields that a user may write, and every message about a field that is wrong.
Never renders objects and never knows what runs.
Called by the operator, by the laptop's runtime, and by the generators of the CRD and of docs/api.md.
"""
