"""Stands in the image of the end-to-end tests alone (`images/local.sh`): Python imports it before anything else runs.

A worker that serves the name `paced` keeps time instead of computing. No field of an LLMDeployment can ask for that,
and no other image has this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

if "--served-name=paced" in sys.argv:
    sys.argv.append(f"--paced={Path(__file__).with_name('paced.json')}")
