"""Entry of the command `batchedmodel`: chooses the subcommand and returns its exit code.

Each subcommand is a module with NAME, HELP, `describe(parser)` and `carry_out(arguments)`. The
parser needs them all, so each imports what is heavy only when it is carried out.
"""

import argparse
import errno
import io
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from batchedmodel_cli.diff import command as diff
from batchedmodel_cli.run import command as run
from batchedmodel_cli.run.console import discard
from batchedmodel_cli.simulate import command as simulate
from batchedmodel_cli.upgrades import command as upgrades

_OUTPUT_CLOSED: Final = 141  # as a shell reports a program that SIGPIPE ended
_INTERRUPTED: Final = 130  # and one that SIGINT ended
_FAILED: Final = 1
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code (2: the line or the manifest is wrong)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A manifest or a process may say what this terminal's character set lacks.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            arguments = _parser().parse_args(argv)
            exit_code: int = arguments.carry_out(arguments)
            return exit_code
        finally:
            # At exit the interpreter would flush, and report a closed pipe in its own words.
            sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        return _OUTPUT_CLOSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        discard(sys.stdout)
        print(f"batchedmodel: {error.strerror}", file=sys.stderr)
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="batchedmodel",
        description="Serves a torch model with dynamic batching, from one manifest.",
        epilog="Start with: batchedmodel run examples/minilm.yaml",
    )
    parser.add_argument(
        "--version", action="version", version=f"batchedmodel {metadata.version('batchedmodel')}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run, simulate, diff, upgrades):
        one = commands.add_parser(
            command.NAME,
            help=command.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(carry_out=command.carry_out)
        command.describe(one)
    return parser


if __name__ == "__main__":
    sys.exit(main())
