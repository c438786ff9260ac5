"""Settings that must hold before any test module is imported."""

import os
from pathlib import Path

# Triton reads this when first imported, by whichever test is first. Where there is a GPU its kernels compile instead.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
