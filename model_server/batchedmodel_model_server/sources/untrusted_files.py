"""The files of a model, read as what they are: somebody's, who may lie.

Used by whatever reads a checkpoint. A file is read up to a bound, and a name that a file gives for
another one leads to no other folder of the container. Imports neither torch nor transformers.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any, Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_model_server.errors import CannotLoad

MOST_JSON_BYTES: Final = 16 * 1024 * 1024
"""Of a configuration or an index. The index of the largest open models has 9 MB."""
MOST_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
"""Of a `tokenizer.json`; those of a quarter of a million words have some 35 MB."""
_LONGEST_NAME: Final = 1024


def is_inside(name: str) -> bool:
    """Whether a relative path, as a file gives it, stays below the folder that it starts from."""
    path = PurePosixPath(name)
    sound = len(name) <= _LONGEST_NAME and name.isprintable()
    return sound and not path.is_absolute() and ".." not in path.parts


def member(folder: Path, name: object, named_by: Path) -> Path:
    """The file or folder of that name below `folder`; raises `CannotLoad` if it leads elsewhere."""
    if not isinstance(name, str) or not is_inside(name):
        raise CannotLoad(f"{named_by}: {shown(name)} leads out of the model's folder")
    return folder / name


def read_bytes(file: Path, most: int) -> bytes:
    """A file's content, of at most so many bytes; raises `CannotLoad` and `OSError`."""
    if file.exists() and not file.is_file():
        raise CannotLoad(f"{file} is no file")  # a pipe would be waited for
    with file.open("rb") as content:
        found = content.read(most + 1)
    if len(found) > most:
        raise CannotLoad(f"{file} is longer than {most} bytes")
    return found


def read_document(file: Path) -> Any:
    """A JSON file; raises `CannotLoad` for what cannot be read, and `FileNotFoundError`."""
    try:
        return json.loads(read_bytes(file, MOST_JSON_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CannotLoad(f"{file} cannot be read: {error}") from error


def read_json(file: Path, absent: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object, or `absent` if there is no such file; raises `CannotLoad`."""
    try:
        document = read_document(file)
    except FileNotFoundError as error:
        if absent is not None:
            return absent
        raise CannotLoad(f"{file} is missing") from error
    if not isinstance(document, dict):
        raise CannotLoad(f"{file} is not a JSON object")
    return document
