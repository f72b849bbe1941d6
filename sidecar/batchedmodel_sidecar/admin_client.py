"""Tells the sidecar in the same container to do what nobody else may: drain, load, unload.

`python -m batchedmodel_sidecar.admin_client drain` is the hook by which the kubelet ends a pod. It
finds the sidecar by the variables from which the sidecar has its settings. It proves itself by a
token that the sidecar makes up at its start and writes to a file. The token stands in no object of
the cluster: only who may run a program in the container can read it.

Exit codes: 0 when it is done, or begun in the case of `drain`; 1 when it was refused; 2 for a wrong
command or settings; 3 when no sidecar answers.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_contract.processes.environment import (
    EXIT_WRONG_SETTINGS,
    PREFIX,
    SidecarSettings,
    from_environment,
)
from batchedmodel_contract.processes.listening import reachable

EXIT_REFUSED: Final = 1
EXIT_NO_ANSWER: Final = 3
_HOOK_SECONDS: Final = 5.0
_LOAD_SECONDS: Final = 3600.0
_LONGEST_ANSWER: Final = 65_536
_TOKEN_BYTES: Final = 32
_LONGEST_TOKEN: Final = 4 * _TOKEN_BYTES


def new_token(path: str) -> str:
    """Make a token up and write it to the file, in place of an earlier one; empty without a path.

    Raises `InvalidInput` when it cannot be written.
    """
    if not path:
        return ""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    # Written elsewhere and renamed: a reader finds it whole, and no link there is followed.
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        Path(draft).rename(path)
    except OSError as error:
        # On a full disk each start would leave one more draft.
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise InvalidInput("TOKEN_FILE", f"cannot be written: {error.strerror}", path) from error
    return token


def read_token(path: str) -> str:
    """What stands in the file; raises `OSError`."""
    with Path(path).open() as file:
        return file.read(_LONGEST_TOKEN)


def commands(model: str) -> Mapping[str, tuple[str, float]]:
    """By the words for them: the path, and how many seconds the answer may take."""
    return {
        "drain": (sidecar_api.DRAIN, _HOOK_SECONDS),
        "load": (sidecar_api.load_path(model), _LOAD_SECONDS),
        "unload": (sidecar_api.unload_path(model), _LOAD_SECONDS),
    }


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Say it, print the answer; the exit code."""
    try:
        settings = from_environment(SidecarSettings, environ)
    except InvalidManifest as error:
        return _ended(str(error), EXIT_WRONG_SETTINGS)
    known = commands(settings.model_name)
    if len(words) != 1 or words[0] not in known:
        return _ended(f"usage: tell {'|'.join(known)}", EXIT_WRONG_SETTINGS)
    if not settings.token_file:
        return _ended(f"{PREFIX}TOKEN_FILE is not set: nobody may do this", EXIT_WRONG_SETTINGS)
    try:
        status, body = _post(settings, *known[words[0]])
    except (OSError, HTTPException) as error:
        return _ended(f"no answer: {error}", EXIT_NO_ANSWER)
    text = body.decode(errors="replace").strip()
    return _ended(text, 0 if status < 300 else EXIT_REFUSED)


def _post(settings: SidecarSettings, path: str, seconds: float) -> tuple[int, bytes]:
    """Status and body of the answer; raises `OSError` and `HTTPException`."""
    headers = {sidecar_api.TOKEN_HEADER: read_token(settings.token_file)}
    connection = HTTPConnection(reachable(settings.host), settings.admin_port, timeout=seconds)
    with contextlib.closing(connection):
        connection.request("POST", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_LONGEST_ANSWER)


def _ended(text: str, code: int) -> int:
    print(text, file=sys.stderr if code else sys.stdout)  # it is a command
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
