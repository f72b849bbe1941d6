"""Entry of the command `batchedmodel`: chooses the subcommand and returns its exit code.

Each subcommand is a module with a name, a help line and two functions, listed once in `_COMMANDS`;
it is imported with the parser, so it must import what is heavy only when it is carried out.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final, Protocol

from batchedmodel_cli.diff import command as diff
from batchedmodel_cli.run import command as run
from batchedmodel_cli.run.console import lead_nowhere
from batchedmodel_cli.simulate import command as simulate


class Command(Protocol):
    """What a subcommand's module holds."""

    NAME: str
    HELP: str

    def describe(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        ...

    def carry_out(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit code."""
        ...


_NOT_READ: Final = 141  # as a shell has it of a tool that SIGPIPE ends
_COMMANDS: Final[tuple[Command, ...]] = (run, simulate, diff)


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code (2: the line or the manifest is wrong)."""
    try:
        try:
            arguments = _parser().parse_args(argv)
            command: Command = arguments.command
            return command.carry_out(arguments)
        finally:
            # At exit it would be too late to say anything but what the interpreter says then.
            sys.stdout.flush()
    except BrokenPipeError:
        lead_nowhere(sys.stdout)
        return _NOT_READ


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
    for command in _COMMANDS:
        one = commands.add_parser(
            command.NAME,
            help=command.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(command=command)
        command.describe(one)
    return parser


if __name__ == "__main__":
    sys.exit(main())
