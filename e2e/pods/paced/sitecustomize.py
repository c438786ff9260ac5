"""A module in the image of the end-to-end tests alone (`images/local.sh`): Python imports it before anything else runs.

A worker that serves the name `paced` keeps time instead of computing: that of a CPU, or of a slow GPU where its pool
has an accelerator. No field of an LLMDeployment can ask for that, and no other image has this file.
"""

from __future__ import annotations

import sys

# A gateway has no `--device`.
if "--served-name=paced" in sys.argv and any(argument.startswith("--device=") for argument in sys.argv):
    TIMES = "accelerated" if "--device=cuda" in sys.argv else "times"
    sys.argv.append(f"--paced=/models/paced/{TIMES}.json")
