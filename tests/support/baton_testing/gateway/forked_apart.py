"""Processes apart of gateways in the test's own process: forks, since each of hundreds of gateways has two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton_gateway.helper_processes import piped_process
from baton_gateway.helper_processes.piped_process import StartedProcess
from baton_testing.processes.prepared import Prepared

APART = ("baton_gateway.text.template_main", "baton_gateway.structured_outputs.format_compiler_main")


@contextmanager
def apart_is_forked() -> Iterator[None]:
    """Within, for what can be forked."""
    run = piped_process.run_module
    with Prepared(APART) as prepared:

        def run_module(module: str, stdin: int, stdout: int, stderr: int) -> StartedProcess:
            if prepared.can_start(("-m", module)):
                return prepared.start(("-m", module), stdout, stderr, given=stdin)
            return run(module, stdin, stdout, stderr)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(piped_process, "run_module", run_module)
            yield
