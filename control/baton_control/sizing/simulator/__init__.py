"""The simulator of a deployment: gateway queue, prefill workers, links and decode workers on one event heap.

Owns the prediction of TTFT and TPOT for given pools and arrivals.
Never decides anything and knows no policy.
Called by `decision` to compare pool sizes, and by `baton simulate` to replay loads.
"""
