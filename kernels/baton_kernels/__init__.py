"""One file per op: torch reference (the specification), Triton kernel, launcher, and a cpu path where it must
serve."""
