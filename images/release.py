"""Builds a release's wheels, and builds, pushes and signs its images for both architectures.

    python images/release.py 0.2.0 --registry registry.example.org/batchedmodel [--dry-run]

It needs docker with buildx, cosign, cyclonedx-py (`tests/foreign/cyclonedx.txt` pins it), and for
the wheels the images' Python with its headers, pip and a C compiler on x86-64.
BuildKit attests what all of an image is made of, Debian's packages included, and how it was built;
cosign signs the digest that was pushed, and with it the CycloneDX list of its Python libraries.
`--dry-run` prints the commands and runs those alone that write the lists.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from zipfile import ZipFile

from build_images import RECIPES, ROOT, Recipe
from record_libraries import LIBRARIES, PYTHON

PLATFORMS: Final = ("linux/amd64", "linux/arm64")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?")
_NO_DIGEST: Final = "sha256:" + "0" * 64


class ReleaseError(Exception):
    """A release cannot go on; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is released, where to, and from which commit."""

    version: str
    registry: str
    revision: str
    created: str
    """When the commit was made, as RFC 3339 writes it: builds of it have the same labels."""
    source: str
    """Where the sources are; empty where the images should not say."""

    def image(self, recipe: Recipe) -> str:
        """Its name without a tag."""
        return f"{self.registry}/{recipe.name}"

    def labels(self) -> dict[str, str]:
        """OCI's own, beside those of the Dockerfile."""
        prefix = "org.opencontainers.image"
        labels = {
            f"{prefix}.version": self.version,
            f"{prefix}.revision": self.revision,
            f"{prefix}.created": self.created,
        }
        return labels | ({f"{prefix}.source": self.source} if self.source else {})


def build(release: Release, recipe: Recipe, *, told: Path) -> list[str]:
    """The command that builds an image for all platforms and pushes it; it writes into `told`."""
    words = ["docker", "buildx", "build", "--platform", ",".join(PLATFORMS)]
    words += [
        "--file",
        str(recipe.dockerfile),
        "--tag",
        f"{release.image(recipe)}:{release.version}",
    ]
    for name, value in release.labels().items():
        words += ["--label", f"{name}={value}", "--annotation", f"index:{name}={value}"]
    words += ["--sbom=true", "--provenance=mode=max", "--pull", "--push"]
    return [*words, "--metadata-file", str(told), str(ROOT)]


def sbom(libraries: Path, written: Path) -> list[str]:
    """The command that writes the list of an image's Python libraries."""
    words = ["cyclonedx-py", "requirements", "--output-reproducible", "--of", "JSON"]
    return [*words, "-o", str(written), str(libraries)]


def sign(image: str, digest: str, written: Path) -> list[list[str]]:
    """The commands that sign what was pushed, and its list of libraries."""
    pushed = f"{image}@{digest}"
    attest = ["cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", str(written)]
    return [["cosign", "sign", "--yes", "--recursive", pushed], [*attest, pushed]]


def libraries_of(recipe: Recipe) -> list[str]:
    """What an image holds, as pip's requirements."""
    recorded = json.loads(LIBRARIES.read_text("utf-8"))
    return [f"{name}=={version}" for name, version in recorded["images"][recipe.name].items()]


def wheel(folder: Path) -> list[str]:
    """The command that builds a wheel of the sources, in the form that the environment asks for."""
    pins = f"--constraint={ROOT / 'constraints.txt'}"
    words = [f"python{PYTHON}", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder)]
    return [*words, pins, str(ROOT)]


def check_wheel(folder: Path, *, compiled: bool) -> None:
    """Raise `ReleaseError` unless a folder has one wheel, with its form's tag and content."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ReleaseError(f"{folder}: {len(wheels)} wheels instead of one")
    python = f"cp{PYTHON.replace('.', '')}"
    tag = f"-{python}-{python}-linux_x86_64.whl" if compiled else "-py3-none-any.whl"
    if not wheels[0].name.endswith(tag):
        raise ReleaseError(f"{wheels[0].name}: its tag is not {tag.removesuffix('.whl')[1:]}")
    with ZipFile(wheels[0]) as packed:
        libraries = [name for name in packed.namelist() if name.endswith(".so")]
    if bool(libraries) != compiled:
        raise ReleaseError(f"{wheels[0].name}: {len(libraries)} compiled modules")


def wheels(folder: Path, *, dry: bool) -> None:
    """Build both wheels, each into a folder of its own, and check them. Raises `ReleaseError`."""
    for form in ("plain", "compiled"):
        compiled = form == "compiled"
        asked = {"HATCH_BUILD_HOOKS_ENABLE": "true" if compiled else "false"}
        _command(wheel(folder / form), dry=dry, variables=asked)
        if not dry:
            check_wheel(folder / form, compiled=compiled)


def run(release: Release, folder: Path, *, dry: bool) -> None:
    """Release wheels and images. Raises `ReleaseError`; what was pushed before stays unsigned."""
    folder.mkdir(parents=True, exist_ok=True)
    wheels(folder / "wheels", dry=dry)
    for recipe in RECIPES:
        told, digest = folder / f"{recipe.name}.build.json", _NO_DIGEST
        required = folder / f"{recipe.name}.requirements.txt"
        required.write_text("\n".join(libraries_of(recipe)) + "\n")
        written = folder / f"{recipe.name}.cdx.json"
        _command(sbom(required, written), dry=False)
        _command(build(release, recipe, told=told), dry=dry)
        if not dry:
            digest = json.loads(told.read_text())["containerimage.digest"]
        for command in sign(release.image(recipe), digest, written):
            _command(command, dry=dry)


def _command(
    words: Sequence[str], *, dry: bool, variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    beside = [f"{name}={value}" for name, value in variables.items()]
    sys.stdout.write(f"{shlex.join([*beside, *words])}\n")
    sys.stdout.flush()
    if dry:
        return
    try:
        subprocess.run(words, check=True, env={**os.environ, **variables})
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseError(f"{words[0]}: {error}") from error


def _told_by_git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseError(f"git does not say what is released: {error}") from error


def _version(text: str) -> str:
    if not _VERSION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is no version such as 0.2.0 or 0.2.0-rc.1")
    return text


def main(words: Sequence[str]) -> int:
    """Releases wheels and images; 1 when something is missing or fails."""
    parser = argparse.ArgumentParser(description="Releases the project's wheels and images.")
    parser.add_argument("version", type=_version)
    parser.add_argument("--registry", required=True, help="what the images' names begin with")
    parser.add_argument("--source", default="", help="address of the sources, for the labels")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    options = parser.parse_args(words)
    try:
        if not options.dry_run and _told_by_git("status", "--porcelain"):
            raise ReleaseError("the working tree differs from its commit: commit or stash first")
        release = Release(
            version=options.version,
            registry=options.registry,
            revision=_told_by_git("rev-parse", "HEAD"),
            created=_told_by_git("show", "--no-patch", "--format=%cI", "HEAD"),
            source=options.source,
        )
        run(release, options.folder, dry=options.dry_run)
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
