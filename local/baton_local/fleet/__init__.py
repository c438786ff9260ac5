"""The processes of a deployment on this machine: planned, started, monitored, sized and stopped.

Owns the run directory and every child process.
Never prints for people.
Called by `baton up`; its records are read by the other commands.
"""
