"""What may keep this machine, or a cluster, from serving: facts, checks over them, findings with what mends them.

Facts are frozen values that thin readers gather, each within one deadline; a fact that no reader could get is None,
which is never taken for zero. Checks are pure. The room changes nothing on the machine or the cluster, apart from the
run folder's parent, which every command makes. Called by `baton doctor` and by `kubectl baton doctor`.
"""
