"""The digital twin: gateway queue, prefill workers, links and decode workers on one event heap.

Owns the prediction of TTFT and TPOT for given pools and arrivals.
Never decides anything and knows no policy.
Called by sizing to weigh pools, and by the simulator to replay loads.
"""
