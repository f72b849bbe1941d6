"""Running a command to its end. Every other module runs its commands through here."""

import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import CommandFailed

_TAIL_LINES = 40


def run(
    arguments: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 300.0,
    folder: Path | None = None,
) -> str:
    """Runs a command and returns its standard output.

    `environment` is laid over that of this process.

    Raises:
        CommandFailed: it ended with another status than 0, or not within `timeout_s`.
    """
    words = [str(word) for word in arguments]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(environment or {})},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(words)}: not done within {timeout_s:g} s") from error
    except FileNotFoundError as error:
        raise CommandFailed(f"{words[0]}: no such command") from error
    if done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(words)}: status {done.returncode}\n{last_lines(done.stderr or done.stdout)}"
        )
    return done.stdout


def run_logged(
    arguments: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 3600.0,
    folder: Path | None = None,
) -> None:
    """Runs a long command with all of its output in the file `log`.

    Raises:
        CommandFailed: as for `run`, with the end of the log.
    """
    words = [str(word) for word in arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        try:
            done = subprocess.run(
                words,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"{words[0]}: not done within {timeout_s:g} s, {log}") from error
        except FileNotFoundError as error:
            raise CommandFailed(f"{words[0]}: no such command") from error
    if done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(words)}: status {done.returncode}, the end of {log}:\n{tail(log)}"
        )


def tail(log: Path) -> str:
    """The last lines of a log file, or a sentence saying that there are none."""
    try:
        return last_lines(log.read_text(errors="replace")) or "(the log is empty)"
    except FileNotFoundError:
        return "(there is no log)"


def last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path`, so that two test runs never make the same thing at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
