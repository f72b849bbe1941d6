"""Reads the header of a GGUF file, which may lie.

It is judged whole before a library sees the file: libraries slice, count and allocate by whatever
numbers a header has. Here a header is read up to a bound, each count and length is compared with
what is left of it, and each tensor lies within the file and beside the others. So what a file makes
us hold is a small multiple of its own size. Imports neither torch nor transformers.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Final

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.manifest.source import GGUF_SUFFIX
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import MOST_TENSORS

MOST_HEADER_BYTES: Final = 32 * 1024 * 1024
"""That of a model with a quarter of a million words has some 17 MB."""
MOST_FIELDS: Final = 10_000
MOST_TEXT_BYTES: Final = 1024 * 1024
"""Of a text such as a chat template."""
MOST_TOKEN_BYTES: Final = 1024
"""Of a text in a list: a token, or two that are merged."""
_MOST_NAME_BYTES: Final = 256
_MOST_DIMENSIONS: Final = 4
_ALIGNMENTS: Final = tuple(1 << bit for bit in range(17))
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_TEXT: Final = 8
_LIST: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct(f"<{letter}")
    for kind, letter in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
"""By the number of a value's type, how it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where a tensor lies in the file, and how it is stored."""

    shape: tuple[int, ...]
    """In torch's order."""
    kind: int
    """As the format numbers them."""
    begin: int
    size: int
    """In bytes, as `begin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says of itself."""

    values: Mapping[str, float | str]
    """Numbers and texts, by field."""
    lengths: Mapping[str, int]
    """Of the fields that are lists."""
    tensors: Mapping[str, GgufTensor]


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that is the model: `path`, or the only one in a folder without `config.json`.

    None for any other folder; raises `CannotLoad` where it could be one of several.
    """
    if path.is_file():
        return path
    if (path / "config.json").exists():
        return None
    files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise CannotLoad(f"{path} holds {len(files)} GGUF files ({names}): name one (source.path)")
    return files[0] if files else None


def read_gguf_header(file: Path) -> GgufHeader:
    """The header, whole and judged; raises `CannotLoad`, which names field, value and rule."""
    try:
        if not file.is_file():
            raise ValueError("it is no file")  # a pipe would be waited for
        with file.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            return _header(_Reader(content.read(MOST_HEADER_BYTES)), size)
    except (OSError, ValueError) as error:
        raise CannotLoad(f"{file} cannot be read as GGUF: {error}") from error


class _Reader:
    """Takes one value behind the other; raises `ValueError` where the header ends before."""

    def __init__(self, header: bytes) -> None:
        self._header = header
        self.at = 0

    def take(self, size: int, field: str) -> bytes:
        taken = self._header[self.at : self.at + size]
        if len(taken) < size:
            rule = f"{size} bytes at {self.at} are not within the file's header"
            raise ValueError(f"{field}: {rule}, of which {MOST_HEADER_BYTES} bytes are read")
        self.at += size
        return taken

    def number(self, form: struct.Struct, field: str) -> int | float:
        (value,) = form.unpack(self.take(form.size, field))
        return value  # type: ignore[no-any-return]

    def integer(self, form: struct.Struct, field: str, most: int | None = None) -> int:
        value = int(self.number(form, field))
        if most is not None and value > most:
            raise ValueError(f"{field}: {value} is more than {most}")
        return value

    def text(self, field: str, most: int) -> str:
        size = self.integer(_U64, field)
        if size > most:
            raise ValueError(f"{field}: a text of {size} bytes; at most {most} are read")
        return self.take(size, field).decode()

    def name(self, field: str) -> str:
        name = self.text(field, _MOST_NAME_BYTES)
        if not name or not name.isprintable():
            raise ValueError(f"{field}: {shown(name)} is no printable name")
        return name


def _header(reader: _Reader, file_size: int) -> GgufHeader:
    if reader.take(len(_MAGIC), "magic") != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.integer(_U32, "version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        rule = "its bytes are in big-endian order" if swapped else "it is not 2 or 3"
        raise ValueError(f"version: {version}: {rule}")
    tensors = reader.integer(_U64, "tensor_count", MOST_TENSORS)
    fields = reader.integer(_U64, "metadata_kv_count", MOST_FIELDS)
    values: dict[str, float | str] = {}
    lengths: dict[str, int] = {}
    for at in range(fields):
        name = reader.name(f"field {at}")
        if name in values or name in lengths:
            raise ValueError(f"{name}: is there twice")
        kind = reader.integer(_U32, name)
        if kind == _LIST:
            lengths[name] = _skipped_list(reader, name)
        elif kind == _TEXT:
            values[name] = reader.text(name, MOST_TEXT_BYTES)
        else:
            values[name] = reader.number(_number_form(kind, name), name)
    return GgufHeader(
        values=values, lengths=lengths, tensors=_tensors(reader, tensors, values, file_size)
    )


def _number_form(kind: int, field: str) -> struct.Struct:
    if kind not in _NUMBERS:
        raise ValueError(f"{field}: {kind} is no type of a value, or not in a list")
    return _NUMBERS[kind]


def _skipped_list(reader: _Reader, field: str) -> int:
    kind, count = reader.integer(_U32, field), reader.integer(_U64, field)
    if kind != _TEXT:
        reader.take(count * _number_form(kind, field).size, field)
        return count
    for _ in range(count):  # each takes eight bytes at least, so the header's end is soon there
        reader.text(field, MOST_TOKEN_BYTES)
    return count


def _tensors(
    reader: _Reader, count: int, values: Mapping[str, float | str], file_size: int
) -> dict[str, GgufTensor]:
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or alignment not in _ALIGNMENTS:
        rule = f"is not a power of two up to {_ALIGNMENTS[-1]}"
        raise ValueError(f"general.alignment: {shown(alignment)} {rule}")
    from gguf import GGML_QUANT_SIZES

    blocks = {kind.value: sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    listed = [_tensor(reader, at) for at in range(count)]
    start = -(-reader.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in listed:
        if kind not in blocks:
            raise ValueError(f"tensor {name}: {kind} is no type of a tensor")
        row, size = blocks[kind]
        if shape[-1] % row:
            raise ValueError(f"tensor {name}: rows of {shape[-1]} are no whole blocks of {row}")
        if name in tensors:
            raise ValueError(f"tensor {name}: is there twice")
        tensor = GgufTensor(
            shape=shape, kind=kind, begin=start + offset, size=prod(shape) // row * size
        )
        if offset % alignment or tensor.begin + tensor.size > file_size:
            rule = f"with {tensor.size} bytes it is not within the file's {file_size} bytes"
            rule = f"is no multiple of {alignment}" if offset % alignment else rule
            raise ValueError(f"tensor {name}: offset {offset}: {rule}")
        tensors[name] = tensor
    laid = sorted(tensors.items(), key=lambda item: item[1].begin)
    for (before, first), (name, second) in pairwise(laid):
        if first.begin + first.size > second.begin:
            raise ValueError(f"tensor {name}: overlaps tensor {before}")
    return tensors


def _tensor(reader: _Reader, at: int) -> tuple[str, tuple[int, ...], int, int]:
    name = reader.name(f"tensor {at}")
    field = f"tensor {name}"
    dimensions = reader.integer(_U32, field, _MOST_DIMENSIONS)
    shape = tuple(reader.integer(_U64, field) for _ in range(dimensions))[::-1]
    if not shape or 0 in shape:
        raise ValueError(f"{field}: shape {list(shape)}: a tensor without numbers")
    return name, shape, reader.integer(_U32, field), reader.integer(_U64, field)
