"""Sums and exchanges between ranks that have a GPU each, through memory that all of them map."""
