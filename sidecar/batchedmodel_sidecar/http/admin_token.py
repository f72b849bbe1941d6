"""The token without which nobody takes the pod out of service: made up here, kept in one file.

Nobody outside the container can compute or read it: it stands in no object of the cluster. Whoever
may run a program in the container may read it, and so does the kubelet's hook (`tell`).
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput

_BYTES: Final = 32
_LONGEST: Final = 4 * _BYTES


def new_token(path: str) -> str:
    """Make one up and write it to the file in place of an earlier one; empty without a path.

    Raises `InvalidInput` when it cannot be written.
    """
    if not path:
        return ""
    token = secrets.token_urlsafe(_BYTES)
    # Written elsewhere and renamed: a reader finds it whole, and no link there is followed.
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        Path(draft).rename(path)
    except OSError as error:
        # On a full disk each start would leave one more.
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise InvalidInput("TOKEN_FILE", f"cannot be written: {error.strerror}", path) from error
    return token


def read_token(path: str) -> str:
    """What stands in the file; raises `OSError`."""
    with Path(path).open() as file:
        return file.read(_LONGEST)
