"""Environment variables that only Baton sets in workers, whatever an installation allows, and the values that it sets.

A worker holds link keys and prompts. A variable is reserved when it is Baton's own, or when a library of that process
takes a file, a command, a module, a signal or a device from it. Names match by prefix and by the words in them, so that
a library's future variable of the kind is reserved too. `tests/kv_transfer/transports` checks the variables of the
installed libraries. The expressions are for Python and for CEL (RE2).
"""

from __future__ import annotations

import re
from typing import Final

_FAMILIES: Final = (
    "BATON_|LD_|PYTHON|KUBERNETES_|NIXL_|NVIDIA_|HABANA_|ASCEND_|TRITON_|PTXAS_|TORCHINDUCTOR_|TORCHDYNAMO_|INDUCTOR_"
    "|AOT_|HALIDE_|KINETO_|INTEL_|OMP_TOOL|GLIBC_|[A-Z_]*MALLOC_|OPENSSL_|XDG_|BASH|PERL|RUBY|NODE_|JAVA_|JDK_|GCC_"
    "|COLLECT_|NVCC_|GIT_|SSH_|DYLD_"
)
"""Prefixes of libraries and programs whose variables are all reserved: NVIDIA's choose the devices of the container,
Triton's and PyTorch's compilers run commands from them."""
_NAMES: Final = (
    "IFS|ENV|SHELLOPTS|CC|CPP|LD|AR|AS|BROWSER|EDITOR|VISUAL|PAGER|HOSTALIASES|RES_OPTIONS|LOCALDOMAIN|NCCL_NET"
    "|TORCH_TRACE|TORCH_DEVICE_BACKEND_AUTOLOAD|TORCH_CUSTOM_TERMINATE"
)
_ENDINGS: Final = (
    "DIR|DIRS|DIRECTORY|FOLDER|FILE|FILES|FILENAME|FILE_NAME|PATH|HOME|TMP|TEMP|ROOT|ROOTS|JSON|SOCK|SOCKET|PIPE|HOOK"
    "|HOOKS|LIB|LIBS|SHELL|CXX|NVCC|HOSTCXX|BINARY|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|XLA_FLAGS|MODULES|OUTPUT|BOOTSTRAP"
    "|LOGS_OUT|INCLUDE"
)
"""Endings of names, with or without an underscore before: GCONV_PATH, LOCPATH, SSLKEYLOGFILE."""
_WORDS: Final = (
    "COMMANDS?|CMD|SCRIPTS?|MAIL|GDB|DEBUGGER|EXEC|SIGNALS?|SIGNO|HANDLE_ERRORS|CONFIG|CONF_FILE|PLUGINS?|MODULE_DIR"
    "|PRELOAD|LIBRARY|LIBRARIES|DRIVERS?|INJECTION[0-9]*|VFS|STATS|DEST|DUMP|COREDUMP|PROFILER?|TRIGGER|LINKER|COMPILER"
    "|DAEMON|PLUGIN_PATHS"
)
"""Words anywhere in a name."""
RESERVED_ENV: Final = f"^({_FAMILIES}|({_NAMES})$)|({_ENDINGS})$|(^|_)({_WORDS})(_|$)"
"""Expression that matches in each reserved name, and in the names of OPENED_BY_NAME."""
OPENED_BY_NAME: Final = ("TRITON_CACHE_DIR", "CUBLAS_WORKSPACE_CONFIG")
"""Names that match but are not reserved. The first names the folder of compiled kernels: an installation that allows it
lets every writer of that folder run code in workers (docs/fitting.md)."""

CLOSED_ENV: Final = (("UCX_CONFIG_DIR", "/nonexistent"), ("UCX_DEBUG_SIGNO", "0"), ("UCX_HANDLE_ERRORS", "none"))
"""Variables that Baton sets in workers: UCX reads no settings from a file, starts no debugger and handles no signal.
Its default for UCX_DEBUG_SIGNO is SIGHUP."""


def is_reserved(name: str) -> bool:
    """True when no installation can allow tenants to set a variable.

    >>> is_reserved("LD_PRELOAD"), is_reserved("UCX_NET_DEVICES")
    (True, False)
    """
    return name not in OPENED_BY_NAME and re.search(RESERVED_ENV, name) is not None
