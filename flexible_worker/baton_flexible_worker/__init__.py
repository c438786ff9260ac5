"""The flexible worker: both sides of the hand-over in one process, and a role that a flip changes."""
