"""Rules and figures that several processes must share, so that what one predicts is what another does.

Owns the order of waiting prompts and their placement, the choice of workers, the digests of prefixes, the form of step
times, what accelerators can do, and the names of answer formats.
Never holds anything that travels, and never does I/O.
Called by gateways, workers and the control plane.
"""
