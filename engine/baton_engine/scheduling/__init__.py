"""A pure scheduler in parts: it decides what the next step computes, and for which requests.

Owns requests, sequences, rows and reservations, and the plan of every step.
Never touches a device, a clock or a thread, and imports no torch.
Called by the engine's stepper.
"""
