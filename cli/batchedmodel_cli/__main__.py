"""Entry of the command `batchedmodel`: chooses the subcommand and returns its exit code.

Each subcommand is the `command` of a module `NAME/command`, which is imported only when it is
carried out, or when its own help or completion is asked for.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click
from click.shell_completion import shell_complete

from batchedmodel_cli import extras
from batchedmodel_cli.output import discard, present

_PROGRAM: Final = "batchedmodel"
_COMPLETION: Final = "_BATCHEDMODEL_COMPLETE"
"""The variable in which a shell asks for completions."""
_SUMMARIES: Final = {
    "run": "serve a model on this machine, without a cluster",
    "init": "write a manifest, a request and, if wanted, a handler with its test",
    "validate": "check manifests without a cluster",
    "simulate": "say what latency, how many replicas and which settings, without a device",
    "diff": "say what applying a manifest does to the live model: restarts, pods",
    "upgrades": "say which models' pods the images of another chart would replace",
}
_OUTPUT_CLOSED: Final = 141  # as a shell reports a program that SIGPIPE ended
_INTERRUPTED: Final = 130  # and one that SIGINT ended
_FAILED: Final = 1
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class _Commands(click.Group):
    """Knows its subcommands by their summaries until one of them is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command = import_module(f"batchedmodel_cli.{name}.command").command
        return name, command, rest


_GROUP: Final = _Commands(
    help="Serves a torch model with dynamic batching, from one manifest.",
    epilog="Start with: batchedmodel run --model MODEL",
    commands=[click.Command(name, short_help=summary) for name, summary in _SUMMARIES.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name=_PROGRAM, message="%(prog)s %(version)s")(_GROUP)


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code (2: the line or the manifest is wrong)."""
    sys.stdout, sys.stderr = present(sys.stdout), present(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A manifest or a process may say what this terminal's character set lacks.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _exit_code(sys.argv[1:] if argv is None else list(argv))
        finally:
            # At exit the interpreter would flush, and report a closed pipe in its own words.
            sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        return _OUTPUT_CLOSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        return extras.explained(error)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        discard(sys.stdout)
        print(f"{_PROGRAM}: {error.strerror}", file=sys.stderr)
        return _FAILED


def _exit_code(words: list[str]) -> int:
    # Without the library's own main, which has other exit codes for interrupts and closed pipes.
    if instruction := os.environ.get(_COMPLETION):
        return shell_complete(_GROUP, {}, _PROGRAM, _COMPLETION, instruction)
    try:
        with _GROUP.make_context(_PROGRAM, words) as context:
            exit_code: int = _GROUP.invoke(context)
            return exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:  # Ctrl-C, or the end of input, at a question
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
