"""Variables that nobody but Baton sets in workers, whatever an installation lists, and what Baton sets instead.

A worker holds link keys and prompts. A variable is reserved when it is Baton's own, or when a library of that process
takes a file, a command, a module, a signal or a device from it. Names are judged by families and by the words in them,
so that a library's next variable of the kind is reserved before anybody knows it. `tests/kv_transfer/transports` reads
what the installed libraries know. The expressions are for Python and for CEL (RE2).
"""

from __future__ import annotations

import re
from typing import Final

_FAMILIES: Final = (
    "BATON_|LD_|PYTHON|KUBERNETES_|NIXL_|NVIDIA_|HABANA_|ASCEND_|TRITON_|PTXAS_|TORCHINDUCTOR_|TORCHDYNAMO_|INDUCTOR_"
    "|AOT_|HALIDE_|KINETO_|INTEL_|OMP_TOOL|GLIBC_|[A-Z_]*MALLOC_|OPENSSL_|XDG_|BASH|PERL|RUBY|NODE_|JAVA_|JDK_|GCC_"
    "|COLLECT_|NVCC_|GIT_|SSH_|DYLD_"
)
"""Libraries and programs of which no variable is a tenant's: NVIDIA's choose the devices of the container, Triton's and
PyTorch's compilers run what they are given."""
_NAMES: Final = (
    "IFS|ENV|SHELLOPTS|CC|CPP|LD|AR|AS|BROWSER|EDITOR|VISUAL|PAGER|HOSTALIASES|RES_OPTIONS|LOCALDOMAIN|NCCL_NET"
    "|TORCH_TRACE|TORCH_DEVICE_BACKEND_AUTOLOAD|TORCH_CUSTOM_TERMINATE"
)
_ENDINGS: Final = (
    "DIR|DIRS|DIRECTORY|FOLDER|FILE|FILES|FILENAME|FILE_NAME|PATH|HOME|TMP|TEMP|ROOT|ROOTS|JSON|SOCK|SOCKET|PIPE|HOOK"
    "|HOOKS|LIB|LIBS|SHELL|CXX|NVCC|HOSTCXX|BINARY|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|XLA_FLAGS|MODULES|OUTPUT|BOOTSTRAP"
    "|LOGS_OUT|INCLUDE"
)
"""Of whole names too, as GCONV_PATH, LOCPATH and SSLKEYLOGFILE have them."""
_WORDS: Final = (
    "COMMANDS?|CMD|SCRIPTS?|MAIL|GDB|DEBUGGER|EXEC|SIGNALS?|SIGNO|HANDLE_ERRORS|CONFIG|CONF_FILE|PLUGINS?|MODULE_DIR"
    "|PRELOAD|LIBRARY|LIBRARIES|DRIVERS?|INJECTION[0-9]*|VFS|STATS|DEST|DUMP|COREDUMP|PROFILER?|TRIGGER|LINKER|COMPILER"
    "|DAEMON|PLUGIN_PATHS"
)
"""Anywhere in a name."""
RESERVED_ENV: Final = f"^({_FAMILIES}|({_NAMES})$)|({_ENDINGS})$|(^|_)({_WORDS})(_|$)"
"""A search for this finds something in each reserved name, and in those of OPENED_BY_NAME."""
OPENED_BY_NAME: Final = ("TRITON_CACHE_DIR", "CUBLAS_WORKSPACE_CONFIG")
"""Not reserved, though they look it. The first holds compiled kernels: an installation that lists it lets those who
write to the folder run code in workers (docs/fitting.md)."""

CLOSED_ENV: Final = (("UCX_CONFIG_DIR", "/nonexistent"), ("UCX_DEBUG_SIGNO", "0"), ("UCX_HANDLE_ERRORS", "none"))
"""What workers get from Baton: UCX reads no settings from a file, starts no debugger and takes no signal over. Its
default for UCX_DEBUG_SIGNO is SIGHUP."""


def is_reserved(name: str) -> bool:
    """Whether no installation can let a tenant set a variable."""
    return name not in OPENED_BY_NAME and re.search(RESERVED_ENV, name) is not None
