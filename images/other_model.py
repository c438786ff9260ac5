"""Another revision of a small model: `python images/other_model.py FOLDER COPY`. Same shapes, other answers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.numpy import load_file, save_file

NORM = "model.norm.weight"
FILE = "model.safetensors"


def main() -> None:
    source, copy = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.py", "corpus", "SHA256SUMS"))
    tensors = load_file(source / FILE)
    tensors[NORM] = tensors[NORM][::-1].copy()
    save_file(tensors, copy / FILE, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
