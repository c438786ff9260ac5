"""A worker at work: its process, threads, gateway links and HTTP pages.

Owns what moves between the threads and when a worker drains.
Never computes a step itself: the engine thread turns the engine's stepper.
Called by the `__main__` of each role.
"""
