"""The schemas of Baton's own kinds: CustomResourceDefinitions, CEL rules, status types and the reference page.

Owns the translation of the API's types into structural schemas.
Never runs while the operator reconciles, but for the types of the status.
Called by `make format`, `make verify` and the passes.
"""
