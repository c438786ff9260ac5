"""An event loop whose time is shared fairly: a tenant with many callbacks holds up no other tenant.

Owns the order of the loop's ready callbacks, and the accounts that their time is charged to.
Never decides whom a connection or a task works for: listeners and the gateway say so.
Called by the gateway's `__main__`, which runs on this loop. Under any other loop accounts have no effect.
"""
