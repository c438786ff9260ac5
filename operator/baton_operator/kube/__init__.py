"""Everything between passes and the Kubernetes API: client, credentials, watches, caches, the Lease and the queue.

Owns every request and every open stream, with their deadlines and refusals.
Never knows what an LLMDeployment means.
Called by the runtime and the passes.
"""
