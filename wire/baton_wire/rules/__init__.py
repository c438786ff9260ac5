"""Rules and figures that processes must reckon with alike, so that what one predicts is what another does.

Owns the order of waiting prompts, the form of step times, and what accelerators can do.
Never holds anything that travels, and never does I/O.
Called by gateways, workers and the control plane's twin.
"""
