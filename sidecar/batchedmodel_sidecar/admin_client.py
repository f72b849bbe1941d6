"""Tells the sidecar in the same container to do what nobody else may: drain, load, unload.

`python -m batchedmodel_sidecar.admin_client drain` is the hook by which the kubelet ends a pod. It
finds the sidecar by the same variables as the sidecar its settings, and the token in the sidecar's
file.

Exit codes: 0 when it is done, or begun in the case of `drain`; 1 when it was refused; 2 for a wrong
command or settings; 3 when no sidecar answers.
"""

import http.client
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.processes import server_api, sidecar_api
from batchedmodel_contract.processes.environment import (
    EXIT_WRONG_SETTINGS,
    PREFIX,
    SidecarSettings,
    from_environment,
)
from batchedmodel_sidecar.http.admin_token import read_token

EXIT_REFUSED: Final = 1
EXIT_NO_ANSWER: Final = 3
_HOOK_SECONDS: Final = 5.0
_LOAD_SECONDS: Final = 3600.0
_LONGEST_ANSWER: Final = 65_536
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a process is reached that listens on all addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What can be told."""

    path: str
    seconds: float
    """How long its answer may take."""


def commands(model: str) -> Mapping[str, Command]:
    """By the words for them."""
    return {
        "drain": Command(path=sidecar_api.DRAIN, seconds=_HOOK_SECONDS),
        "load": Command(path=server_api.load_path(model), seconds=_LOAD_SECONDS),
        "unload": Command(path=server_api.unload_path(model), seconds=_LOAD_SECONDS),
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
        status, text = _post(settings, known[words[0]])
    except (OSError, http.client.HTTPException) as error:
        return _ended(f"no answer: {error!r}", EXIT_NO_ANSWER)
    return _ended(text.strip(), 0 if status < 300 else EXIT_REFUSED)


def _post(settings: SidecarSettings, command: Command) -> tuple[int, str]:
    headers = {sidecar_api.TOKEN_HEADER: read_token(settings.token_file)}
    host = _EVERYWHERE.get(settings.host, settings.host)
    connection = http.client.HTTPConnection(host, settings.admin_port, timeout=command.seconds)
    try:
        connection.request("POST", command.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_LONGEST_ANSWER).decode(errors="replace")
    finally:
        connection.close()


def _ended(text: str, code: int) -> int:
    print(text, file=sys.stderr if code else sys.stdout)  # it is a command
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
