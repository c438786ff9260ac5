"""A worker at work: its process, threads, gateway links and HTTP pages.

Owns the messages between the threads, and the drain.
Never computes a step itself: the engine thread turns the engine's stepper.
Called by the `__main__` of each role.
"""
