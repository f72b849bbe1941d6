"""Reads the files of a model, which may lie.

Used by whatever reads a checkpoint. A file is read up to a bound. A name that a file gives for
another one leads to no other folder of the container. The headers of weights are judged before the
library reads them: it refuses offsets that do not fit the file, but bounds a header by 100 MB,
which becomes gigabytes of memory and minutes. Imports neither torch nor transformers.
"""

import json
import math
import struct
from pathlib import Path, PurePosixPath
from typing import Any, Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_model_server.errors import CannotLoad

MOST_JSON_BYTES: Final = 16 * 1024 * 1024
"""Of a configuration or an index. The index of the largest open models has 9 MB."""
MOST_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
"""Of a `tokenizer.json`; those of a quarter of a million words have some 35 MB."""
MOST_HEADER_BYTES: Final = 16 * 1024 * 1024
"""Of a file of weights. A tensor's entry has some 100 bytes."""
MOST_TENSORS: Final = 100_000
"""In one file."""
_LONGEST_NAME: Final = 1024
_MOST_DIMENSIONS: Final = 64
_LARGEST: Final = 2**63 - 1
_PREFIX: Final = struct.Struct("<Q")


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


def check_folder(folder: Path) -> None:
    """Judge all safetensors files of a folder, and what its indexes name; raises `CannotLoad`."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict):
            raise CannotLoad(f"{index}: weight_map is not a file for each tensor")
        for name in {str(name): name for name in named.values()}.values():
            if not member(folder, name, index).is_file():
                raise CannotLoad(f"{index}: {folder} has no {name}")
    for file in sorted(folder.glob("*.safetensors")):
        check_file(file)


def check_file(file: Path) -> None:
    """Judge the header of a safetensors file; raises `CannotLoad`.

    Whether the tensors fit the file is judged by the library.
    """
    try:
        tensors = _header(file)
    except (OSError, ValueError, RecursionError) as error:
        raise CannotLoad(f"{file} cannot be read as safetensors: {error}") from error
    if len(tensors) > MOST_TENSORS:
        raise CannotLoad(f"{file} holds {len(tensors)} tensors; at most {MOST_TENSORS} are read")
    for name, tensor in tensors.items():
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if name != "__metadata__" and not _is_shape(shape):
            raise CannotLoad(f"{file}: the shape of {name[:100]} is none that a tensor can have")


def _header(file: Path) -> dict[str, Any]:
    if file.exists() and not file.is_file():
        raise ValueError("it is no file")  # a pipe would be waited for
    with file.open("rb") as content:
        prefix = content.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise ValueError("it ends before its header")
        (length,) = _PREFIX.unpack(prefix)
        if length > MOST_HEADER_BYTES:
            rule = f"its header says to have {length} bytes; at most {MOST_HEADER_BYTES} are read"
            raise ValueError(rule)
        text = content.read(length)
    if len(text) < length:
        raise ValueError("it ends within its header")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("its header is not a JSON object")
    return document


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        return False
    if not all(type(size) is int and 0 <= size <= _LARGEST for size in shape):
        return False
    # Of tensors without elements too: what computes strides leaves out the zeros.
    strides: int = math.prod(size for size in shape if size)
    return strides <= _LARGEST
