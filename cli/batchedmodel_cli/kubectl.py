"""kubectl, which knows the person's clusters, contexts and ways to log in."""

import re
import subprocess
from collections.abc import Sequence
from typing import Final

import click

from batchedmodel_cli.simulate.inputs import Refused

_KUBECTL: Final = "kubectl"
_LOG_LINE: Final = re.compile(r"[A-Z]\d{4} \d")
"""A log line of kubectl's library; it repeats the message in other words."""
_SILENCE: Final = "failed without a word"
_REQUEST_SECONDS: Final = 30
_LONGEST_SECONDS: Final = 300
"""A person may have to log in meanwhile."""


OPTIONS: Final[Sequence[click.Parameter]] = (
    click.Option(["--context"], metavar="NAME", help="kubectl's context."),
    click.Option(["--namespace", "-n"], metavar="NAME", help="kubectl's namespace."),
)


def run(*words: str, context: str | None, namespace: str | None, form: str = "yaml") -> str:
    """What a command, such as `get`, says of objects; raises `Refused`."""
    command = [_KUBECTL, *words, f"--output={form}"]
    command.append(f"--request-timeout={_REQUEST_SECONDS}s")
    command += [] if context is None else [f"--context={context}"]
    command += [] if namespace is None else [f"--namespace={namespace}"]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_LONGEST_SECONDS,
        )
    except FileNotFoundError as error:
        raise Refused(f"{_KUBECTL} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{_KUBECTL} has not answered within {_LONGEST_SECONDS} s") from error
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if not _LOG_LINE.match(line)]
        raise Refused("\n".join(f"{_KUBECTL}: {line}" for line in said or [_SILENCE]))
    return ran.stdout
