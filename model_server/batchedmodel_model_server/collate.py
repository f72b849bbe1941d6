"""Pads the valid items of a batch into rectangles, and cuts the answers apart again.

Pure, numpy only. Both ways run off the compute thread.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.batch_wire import Ragged
from batchedmodel_contract.tensors import Datatype, Shape
from batchedmodel_model_server.declaration import Declaration
from batchedmodel_model_server.handler import Array, Spec, mask_of
from batchedmodel_model_server.validation import Column, Examined, owners

Sizes = Mapping[str, NDArray[np.int64]]
"""The size of each valid item by letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collated:
    """The valid items, padded."""

    items: tuple[int, ...]
    """Which item of the batch each row is."""
    arrays: Mapping[str, Array]
    sizes: Sizes

    @property
    def rows(self) -> int:
        """How many items there are."""
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output of all valid items as `forward` gave it, on the host.

    `sizes` holds each row's size where the output has a letter of its own.
    """

    array: Array
    sizes: NDArray[np.int64] | None = None


def collate(declaration: Declaration, examined: Examined) -> Collated:
    """The valid items of the batch, of which there must be at least one."""
    valid = examined.valid
    sizes: dict[str, NDArray[np.int64]] = {}
    for name, spec in declaration.inputs.items():
        shapes = examined.columns[name].shapes
        for axis, letter in enumerate(spec.shape):
            if isinstance(letter, str) and letter not in sizes:
                sizes[letter] = np.array([shapes[index][axis] for index in valid], dtype=np.int64)
    arrays = {name: _pad(column, valid, sizes) for name, column in examined.columns.items()}
    return Collated(items=tuple(valid), arrays=arrays, sizes=sizes)


def examples(declaration: Declaration, rows: int, length: int) -> Collated:
    """Equal valid items, `length` long where the declaration allows it."""
    sizes: dict[str, int] = {}
    for spec in declaration.inputs.values():
        for letter in spec.letters:
            sizes[letter] = min(sizes.get(letter, length), spec.max or length)
    arrays = {
        name: np.zeros(
            (rows, *(sizes[size] if isinstance(size, str) else size for size in spec.shape)),
            dtype=spec.dtype,
        )
        for name, spec in declaration.inputs.items()
    }
    each = {letter: np.full(rows, size, dtype=np.int64) for letter, size in sizes.items()}
    return Collated(items=tuple(range(rows)), arrays=arrays, sizes=each)


def split(
    declaration: Declaration,
    outputs: Mapping[str, Output],
    sizes: Sizes,
    valid: Sequence[int],
    count: int,
) -> tuple[tuple[Ragged, ...], dict[int, str]]:
    """Each output cut to the items' own sizes, and the faults of items without a usable answer.

    The tensors of the `count` items follow their order; those of an item that failed are empty,
    but for outputs without dimensions, whose only possible size is one value: zero.
    """
    cut = {name: _trim(spec, outputs[name], sizes) for name, spec in declaration.outputs.items()}
    faults: dict[int, str] = {}
    for name, (flat, shapes) in cut.items():
        for row in _rows_not_finite(flat, shapes):
            faults.setdefault(valid[row], f"{name}: the model's answer is not a finite number")
    kept = [row for row, index in enumerate(valid) if index not in faults]
    ragged = tuple(
        _string(name, declaration.outputs[name], flat, shapes, kept, valid, count)
        for name, (flat, shapes) in cut.items()
    )
    return ragged, faults


def no_outputs(declaration: Declaration, count: int) -> tuple[Ragged, ...]:
    """The outputs of a batch of which no item got an answer."""
    return tuple(
        _string(name, spec, np.zeros(0, spec.dtype), (), (), (), count)
        for name, spec in declaration.outputs.items()
    )


def _pad(column: Column, valid: Sequence[int], sizes: Sizes) -> Array:
    spec = column.spec
    longest = tuple(
        int(sizes[size].max()) if isinstance(size, str) else size for size in spec.shape
    )
    whole = len(valid) == len(column.shapes)
    if whole and all(shape == longest for shape in column.shapes):
        # Received bytes are read-only and torch wants arrays that it could write to: copy.
        return column.flat.reshape(len(valid), *longest).copy()
    padded = np.full((len(valid), *longest), spec.pad, dtype=spec.dtype)
    if whole and spec.letters == spec.shape[:1]:
        letter = spec.letters[0]
        padded[mask_of(sizes[letter])] = column.flat.reshape(-1, *longest[1:])
        return padded
    for row, index in enumerate(valid):
        padded[row][_corner(column.shapes[index])] = column.item(index)
    return padded


def _trim(spec: Spec, output: Output, sizes: Sizes) -> tuple[Array, tuple[Shape, ...]]:
    """The rows' values one behind the other, and each row's shape."""
    array = output.array
    if not spec.letters:
        return array.reshape(-1), (array.shape[1:],) * len(array)
    own = {} if output.sizes is None else {spec.letters[0]: output.sizes}
    known = {**sizes, **own}
    columns = [
        known[size].tolist() if isinstance(size, str) else [size] * len(array)
        for size in spec.shape
    ]
    shapes: tuple[Shape, ...] = tuple(zip(*columns, strict=True))
    if all(shape == array.shape[1:] for shape in shapes):
        return array.reshape(-1), shapes
    if spec.letters == spec.shape[:1]:
        longest = array.shape[1]
        mask = np.arange(longest) < known[spec.letters[0]][:, None]
        return array[mask].reshape(-1), shapes
    rows = [array[row][_corner(shape)].reshape(-1) for row, shape in enumerate(shapes)]
    return np.concatenate(rows), shapes


def _corner(shape: Shape) -> tuple[slice, ...]:
    """Where an item lies within its padded row."""
    return tuple(slice(size) for size in shape)


def _rows_not_finite(flat: Array, shapes: Sequence[Shape]) -> list[int]:
    if flat.dtype.kind != "f":
        return []
    bad = ~np.isfinite(flat)
    if not bad.any():
        return []
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    return [int(row) for row in np.unique(owners(np.flatnonzero(bad), ends))]


def _string(
    name: str,
    spec: Spec,
    flat: Array,
    shapes: Sequence[Shape],
    kept: Sequence[int],
    valid: Sequence[int],
    count: int,
) -> Ragged:
    datatype = Datatype(spec.datatype)
    if len(kept) == count:
        return Ragged(name=name, datatype=datatype, shapes=tuple(shapes), parts=(flat.tobytes(),))
    every: list[Shape] = [(0,) * len(spec.shape)] * count
    sizes = [math.prod(shape) for shape in shapes]
    ends = np.cumsum(sizes, dtype=np.int64)
    parts = [b"" if spec.shape else bytes(spec.dtype.itemsize)] * count
    for row in kept:
        every[valid[row]] = shapes[row]
        parts[valid[row]] = flat[ends[row] - sizes[row] : ends[row]].tobytes()
    return Ragged(name=name, datatype=datatype, shapes=tuple(every), parts=(b"".join(parts),))
