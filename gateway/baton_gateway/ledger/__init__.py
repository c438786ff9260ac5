"""The ledger: what each request used, for a bill, through any kill of this process.

The relay opens an entry before a request's work is sent to a worker, counts tokens in it before they are delivered, and
closes it. The room writes lines in a thread of its own. It never sees a prompt, an answer or a key, never waits for a
disk in the event loop, and decides nothing about requests but whether there is room to record one.
"""
