"""`baton bench`: a load of known arrivals and lengths on any OpenAI endpoint, and what clients saw of it.

Owns the plan of a load, the prompts, the open loop and the report.
Never starts or stops a server.
Called by the command line and the benchmarks.
"""
