"""What weights say about themselves, judged before a library reads them. Imports no torch.

The library refuses offsets that do not fit the file. It bounds a header by 100 MB, which becomes
gigabytes of memory and minutes: a process that is killed for that says nothing.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any, Final

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import member, read_json

MOST_HEADER_BYTES: Final = 16 * 1024 * 1024
"""A tensor's entry has some 100 bytes."""
MOST_TENSORS: Final = 100_000
"""In one file."""
_MOST_DIMENSIONS: Final = 64
_LARGEST: Final = 2**63 - 1
_PREFIX: Final = struct.Struct("<Q")
_WEIGHTS: Final = "*.safetensors"
_INDEX: Final = "*.safetensors.index.json"


def check_folder(folder: Path) -> None:
    """Judge all safetensors files of a folder, and what its indexes name; raises `CannotLoad`."""
    for index in sorted(folder.glob(_INDEX)):
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict):
            raise CannotLoad(f"{index}: weight_map is not a file for each tensor")
        for name in {str(name): name for name in named.values()}.values():
            if not member(folder, name, index).is_file():
                raise CannotLoad(f"{index}: {folder} has no {name}")
    for file in sorted(folder.glob(_WEIGHTS)):
        check_file(file)


def check_file(file: Path) -> None:
    """Judge one file's header; raises `CannotLoad`. That it fits the file is the library's part."""
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
