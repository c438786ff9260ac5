"""The commands of `baton` that work on a deployment: up, demo, ask, status, logs, plan,
simulate, quantise.

Owns what each prints and its exit status.
Never keeps a process alive by itself: `fleet` does.
Called by `baton`'s dispatcher.
"""
