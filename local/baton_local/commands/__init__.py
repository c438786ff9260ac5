"""The commands of `baton`: up, down, demo, ask, chat, status, logs, validate, plan, simulate, quantise, compile, bench.

Owns the output and the exit status of each.
Never keeps a process alive by itself: `fleet` does.
Called by `__main__`.
"""
