"""`python -m cluster`: the test cluster by hand.

`up` and `down` start and stop one that stays; `shell` opens a shell with KUBECONFIG set, in the
one that is up or else in one that ends with the shell.
"""

import argparse
import logging
import os
import subprocess
import sys
from pathlib import Path

from cluster.binaries import CONTROL_PLANE, NODE, POLICIES, binaries
from cluster.errors import ClusterError
from cluster.images import build_image, pause_image
from cluster.leftovers import clean_up, leftovers
from cluster.packages import require_packages, require_root
from cluster.settings import Settings
from cluster.signals import termination_as_interrupt
from cluster.slots import SLOTS, Slot
from cluster.standing import bring_up, serve, standing_cluster, standing_or_own, take_down


def main() -> int:
    options = _parser().parse_args()
    settings = Settings.from_environment(os.environ)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        with termination_as_interrupt():
            return _do(options, settings)
    except KeyboardInterrupt:
        return 130
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="make what a cluster needs, before tests wait")
    prepare.add_argument("what", choices=("control-plane", "node"))
    for name, explanation in {
        "up": "start a cluster in the background and say where its kubeconfig is",
        "down": "stop it",
        "status": "say what is there",
        "cleanup": "remove what killed clusters have left behind",
    }.items():
        commands.add_parser(name, help=explanation)
    commands.add_parser("serve")
    shell = commands.add_parser("shell", help="open a shell, or run a command, in a cluster")
    shell.add_argument("words", nargs="*", metavar="COMMAND")
    image = commands.add_parser("image", help="build a Dockerfile, for the cluster that is up too")
    image.add_argument("dockerfile", type=Path)
    image.add_argument("tag")
    image.add_argument("--context", type=Path, default=Path())
    image.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    return parser


def _do(options: argparse.Namespace, settings: Settings) -> int:
    match options.command:
        case "prepare":
            _prepare(options.what, settings)
        case "up":
            _say(f"export KUBECONFIG={bring_up(settings).kubeconfig}")
        case "serve":
            serve(settings)
        case "down":
            _say("stopped" if take_down(settings) else "no cluster is up")
        case "status":
            _status(settings)
        case "cleanup":
            for line in clean_up(settings):
                _say(f"removed {line}")
        case "shell":
            return _shell(settings, options.words)
        case "image":
            _image(options, settings)
    return 0


def _prepare(what: str, settings: Settings) -> None:
    require_root()
    binaries(settings, CONTROL_PLANE)
    if what == "node":
        require_packages()
        binaries(settings, (*NODE, *POLICIES))
        pause_image(settings)


def _status(settings: Settings) -> None:
    standing = standing_cluster(settings)
    _say(f"up: KUBECONFIG={standing.kubeconfig}" if standing else "no cluster is up")
    for number in SLOTS:
        for line in leftovers(settings, Slot(number)):
            _say(f"  {line}")


def _shell(settings: Settings, words: list[str]) -> int:
    with standing_or_own(settings) as cluster:
        command = words or [os.environ.get("SHELL", "/bin/sh")]
        return subprocess.run(
            command, env={**os.environ, **cluster.environment}, check=False
        ).returncode


def _image(options: argparse.Namespace, settings: Settings) -> None:
    image = build_image(
        settings,
        dockerfile=options.dockerfile,
        context=options.context,
        tag=options.tag,
        build_args=dict(argument.split("=", 1) for argument in options.build_arg),
    )
    cluster = standing_cluster(settings)
    if cluster is None:
        _say("built; no cluster is up to put it in")
    else:
        cluster.import_image(image)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
