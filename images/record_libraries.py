"""Writes `images/libraries.json`: what each image holds of Python, and that it exists for arm64.

    python images/record_libraries.py

It asks pip, by the pins of `constraints.txt`, what it would install on an arm64 machine from wheels
alone. Run it after every change of `constraints.txt` or of an image's extra; tests read the file.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

from build_images import RECIPES, ROOT

LIBRARIES: Final = ROOT / "images" / "libraries.json"
PYTHON: Final = "3.13"
"""That of the images' Debian."""
_GLIBC: Final = range(5, 42)
"""Debian trixie has 2.41."""


def wheels(requirements: list[str]) -> dict[str, tuple[str, str]]:
    """Version and wheel by library, as pip would choose them on arm64."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    words += ["--only-binary", ":all:", "--python-version", PYTHON, "--constraint"]
    words += [str(ROOT / "constraints.txt"), *requirements]
    for minor in _GLIBC:
        words += ["--platform", f"manylinux_2_{minor}_aarch64"]
    words += ["--platform", "manylinux2014_aarch64"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words += ["--target", folder, "--report", str(report)]
        subprocess.run(words, check=True)
        found: dict[str, Any] = json.loads(report.read_text())
    return {
        one["metadata"]["name"]: (
            one["metadata"]["version"],
            one["download_info"]["url"].rpartition("/")[2],
        )
        for one in found["install"]
    }


def main() -> None:
    """Ask for each image, and write."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    images: dict[str, dict[str, str]] = {}
    files: dict[str, str] = {}
    for recipe in RECIPES:
        found = wheels(project["optional-dependencies"][recipe.name])
        images[recipe.name] = {name: found[name][0] for name in sorted(found, key=str.lower)}
        files |= {name: wheel for name, (_, wheel) in found.items()}
    ordered = {name: files[name] for name in sorted(files, key=str.lower)}
    LIBRARIES.write_text(json.dumps({"images": images, "wheels": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
