"""`kubectl baton`: a deployment on a cluster, seen from outside with the rights of the caller's kubeconfig."""
