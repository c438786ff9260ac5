"""Real Pods for tests: kubectl, a load generator that runs in the cluster, the installed operator."""
