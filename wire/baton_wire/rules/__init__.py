"""Rules and figures that several processes must share, so that what one predicts is what another does.

Owns the order of waiting prompts, the form of step times, and what accelerators can do.
Never holds messages, and never does I/O.
Called by gateways, workers and the control plane's simulator.
"""
