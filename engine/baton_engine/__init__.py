"""The engine of a worker: scheduling, running, model, grammars and memory.

Owns what a step computes, from requests to tokens.
Never opens a socket and knows neither gateways nor other workers.
Called by `baton_worker`, and by `baton batch` in one process.
"""
