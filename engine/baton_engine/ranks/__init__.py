"""The ranks of one worker as processes: started, fed with step plans, watched, and ended together.

Owns the frames between the worker's process and its ranks, and who is lost when one of them does not answer.
Never decides what a step does: a plan is carried out by each rank's own runner.
Called by the worker's building; `rank_main` is the ranks' program.
"""
