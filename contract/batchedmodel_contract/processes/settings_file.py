"""Reads a file of settings: in a pod of a mounted ConfigMap, elsewhere written by hand."""

from pathlib import Path
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput

_MOST_BYTES: Final = 1 << 20  # as much as a ConfigMap may hold


def read_settings_file(file: Path) -> bytes:
    """The bytes of the file, at most 1 MiB; raises `InvalidInput`."""
    try:
        if file.exists() and not file.is_file():
            raise InvalidInput(str(file), "is no file")  # a pipe would be waited for
        with file.open("rb") as content:
            text = content.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be read: {error}") from error
    if len(text) > _MOST_BYTES:
        raise InvalidInput(str(file), f"is longer than {_MOST_BYTES} bytes")
    return text
