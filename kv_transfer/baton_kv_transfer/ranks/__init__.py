"""Arithmetic of workers of several ranks: which heads a rank holds, who sends which to whom, which units are complete.

Owns the names of ranks and of legs (`tensor_parallel`), and the bitmap of complete units (`unit_coverage`). Pure.
Never holds a machine: these are in `prefill` and `decode`.
Called by both sides' `group` and `ranks`, and by the links' check that a pair fits.
"""
