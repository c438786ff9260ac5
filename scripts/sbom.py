"""Prints the contents of an image as CycloneDX 1.5 JSON: `python scripts/sbom.py ROLE`.

The packages are those of images/requirements-ROLE.txt, from which the image is built with `--require-hashes`; the base
image has a list of its own, by its publisher. The output depends on the files alone, so that it can be compared.
"""

from __future__ import annotations

import json
import sys
import tomllib
import uuid
from pathlib import Path

from image_requirements import EXTRAS, Pin, read

ROOT = Path(__file__).resolve().parents[1]


def bill_of_materials(role: str) -> dict[str, object]:
    """The bill of materials of an image. Raises OSError for a role without a list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "images" / f"requirements-{role}.txt").read_text(encoding="utf-8")
    own = {"type": "container", "bom-ref": f"baton-{role}", "name": f"baton-{role}", "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": {"component": own},
        "components": [_component(name, pin) for name, pin in sorted(read(text).items())],
    }


def _component(name: str, pin: Pin) -> dict[str, object]:
    """One package. Its files have a hash for each platform, of which an image has one."""
    purl = f"pkg:pypi/{name}@{pin.version}"
    hashes = [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")} for digest in pin.hashes]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": pin.version,
        "purl": purl,
        **({"properties": [{"name": "pip:marker", "value": pin.marker}]} if pin.marker else {}),
        "hashes": hashes,
    }


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        sys.exit(f"usage: sbom.py ROLE, one of {', '.join(EXTRAS)}")
    print(json.dumps(bill_of_materials(sys.argv[1]), indent=2))
