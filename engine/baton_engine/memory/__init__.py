"""The KV pool: blocks and their owners, the prefix cache, and the blocks' memory.

Owns which block belongs to whom and when it may be given to another.
Never schedules.
Called by the scheduler, the runner and the transfer.
"""
