"""The laptop runtime and the command line `baton`.

Owns local processes and everything that a person types.
Never decides what should run (that is `baton_control`) and never needs Kubernetes.
Called from a shell.
"""
