"""The LLMDeployment as typed values: fields, bounds, scalar types, model sources, and the strict reader of files.

Owns what a user may write and every message about what is wrong with it.
Never renders objects and never knows what runs.
Called by the operator, the laptop runtime and whoever writes the reference pages.
"""
