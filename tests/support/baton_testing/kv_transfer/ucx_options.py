"""`python -m`: prints all options of the UCX that NIXL's wheel brings, as `ucx_info -c -a -f` does: name, default and
syntax of each. The wheel has no `ucx_info`, so that the library is asked."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton_kv_transfer.transports.ucx.binding import PACKAGE
from baton_testing.processes.child_process import run_to_end

_CONFIG, _DOC, _HIDDEN = 1, 4, 8
"""A flag of `ucs_config_print_flags_t`."""
_OPTION = re.compile(r"(?:# )?(UCX_[A-Z0-9_]+)=(.*)")

SAME_PACKAGES = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
"""Environment of a child that finds the tests' packages."""


@dataclass(frozen=True, slots=True)
class UcxOption:
    """A variable that UCX reads."""

    name: str
    default: str
    syntax: str
    """The form of a value, in UCX's words."""


def libraries() -> Path:
    """The folder of the wheel's shared objects."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1] / f"{PACKAGE}.libs"


def ucx_options() -> tuple[UcxOption, ...]:
    """All options, those of the modules that load on this machine included."""
    done = run_to_end(["-m", "baton_testing.kv_transfer.ucx_options"], 60.0, SAME_PACKAGES)
    assert done.code == 0, done.stderr
    return tuple(_options(done.stdout))


def _options(text: str) -> Iterator[UcxOption]:
    syntax = ""
    for line in text.splitlines():
        option = _OPTION.match(line)
        if line.startswith("# syntax:"):
            syntax = line.removeprefix("# syntax:").strip()
        elif option is not None:
            yield UcxOption(option[1], option[2], syntax)


def main() -> None:
    loaded = {}
    for name in ("libucp", "libuct", "libucs"):  # the first brings the others, which need each other
        (path,) = libraries().glob(f"{name}-*.so*")
        loaded[name] = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    components, count = ctypes.c_void_p(), ctypes.c_uint()
    loaded["libuct"].uct_query_components(ctypes.byref(components), ctypes.byref(count))  # loads the modules
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    options = ctypes.c_char.in_dll(loaded["libucs"], "ucs_config_global_list")
    flags = ctypes.c_int(_CONFIG | _DOC | _HIDDEN)
    loaded["libucs"].ucs_config_parser_print_all_opts(stdout, b"UCX_", flags, ctypes.byref(options), None)
    libc.fflush(stdout)


if __name__ == "__main__":
    main()
