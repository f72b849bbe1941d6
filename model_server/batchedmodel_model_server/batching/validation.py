"""Judges every item of a batch against the declaration, before any item touches another.

On a GPU an id outside the vocabulary is no exception but a device-side assert that costs the
process; so nothing reaches `forward` that was not checked here. Pure.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.params import Scalar, column_values
from batchedmodel_contract.inference.tensors import Datatype, Shape
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.handler import DTYPES, Array, Spec
from batchedmodel_model_server.batching.declaration import Declaration

Fault = tuple[int, str]
"""An item and what is wrong with it."""


class Column(NamedTuple):
    """One input of every item: its values one behind the other, and where each item ends."""

    name: str
    spec: Spec
    shapes: tuple[Shape, ...]
    flat: Array
    ends: Sequence[int]

    def item(self, index: int) -> Array:
        """The tensor of one item; a view."""
        start = self.ends[index - 1] if index else 0
        return self.flat[start : self.ends[index]].reshape(self.shapes[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A batch after validation: what it holds, and the fault of each item that has one."""

    count: int
    columns: Mapping[str, Column]
    faults: Mapping[int, str]
    params: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    """Of every item, the parameters that came with the batch; the others have their defaults."""
    adapters: tuple[int, ...] = ()
    """Of every item, the number of its adapter; empty where none has one."""

    @property
    def valid(self) -> list[int]:
        """The items without a fault, in order."""
        return [index for index in range(self.count) if index not in self.faults]

    def only(self, items: Collection[int]) -> "Examined":
        """The same batch with these alone to be run; what stands against the others is left out."""
        others = {index: "" for index in range(self.count) if index not in items}
        return replace(self, faults=others)


def examine(declaration: Declaration, request: BatchRequest) -> Examined:
    """The batch with every item judged; raises `InvalidInput` when it is no batch of this model."""
    given = {ragged.name: ragged for ragged in request.inputs}
    for name in given:
        if name not in declaration.inputs:
            known = ", ".join(declaration.inputs)
            raise InvalidInput("inputs", f"is not an input of this model; it takes {known}", name)
    for name in declaration.inputs:
        if name not in given:
            raise InvalidInput("inputs", f"lacks {name}")
    counts = {name: len(ragged.shapes) for name, ragged in given.items()}
    count = next(iter(counts.values()))
    if len(set(counts.values())) != 1:
        raise InvalidInput("inputs", f"disagree about the number of items: {counts}")
    if count == 0:
        raise InvalidInput("inputs", "hold no items")
    for name, spec in declaration.inputs.items():
        alike = _fault_of_all(spec, given[name])
        if alike is not None:
            return Examined(count=count, columns={}, faults=dict.fromkeys(range(count), alike))
    params = _params(declaration, request, count)
    columns = {name: _column(spec, given[name]) for name, spec in declaration.inputs.items()}
    faults: dict[int, str] = {}
    for column in columns.values():
        for index, fault in (*_wrong_shapes(column), *_wrong_values(column)):
            faults.setdefault(index, fault)
    for index, fault in (*_unequal_letters(columns, count), *_wrong_params(declaration, params)):
        faults.setdefault(index, fault)
    adapters = request.adapters
    return Examined(count=count, columns=columns, faults=faults, params=params, adapters=adapters)


def owners(positions: NDArray[np.intp], ends: Sequence[int]) -> NDArray[np.intp]:
    """The item that each position of a flat tensor belongs to."""
    return np.searchsorted(ends, positions, side="right")


def _fault_of_all(spec: Spec, ragged: Ragged) -> str | None:
    """A tensor has one datatype and one rank, so all of its items share this fault."""
    if ragged.datatype != spec.datatype:
        rule = f"is not the datatype of this input, {spec.datatype}"
        return str(InvalidInput(ragged.name, rule, ragged.datatype))
    if len(ragged.shapes[0]) != len(spec.shape):
        rule = f"does not have the {len(spec.shape)} dimensions of {_form(spec)}"
        return str(InvalidInput(ragged.name, rule, ragged.shapes[0]))
    return None


def _params(
    declaration: Declaration, request: BatchRequest, count: int
) -> dict[str, Sequence[Scalar]]:
    found: dict[str, Sequence[Scalar]] = {}
    for column in request.params:
        param = declaration.params.get(column.name)
        if param is None:
            known = ", ".join(declaration.params) or "none"
            rule = f"is not a parameter of this model; it takes {known}"
            raise InvalidInput("parameters", rule, column.name)
        found[column.name] = column_values(column, param)
        if len(found[column.name]) != count:
            rule = f"has {len(found[column.name])} values for {count} items"
            raise InvalidInput(f"parameters.{column.name}", rule)
    return found


def _wrong_params(
    declaration: Declaration, params: Mapping[str, Sequence[Scalar]]
) -> Iterator[Fault]:
    for name, values in params.items():
        for index, value in enumerate(values):
            try:
                declaration.params[name].read(value, f"parameters.{name}")
            except InvalidInput as error:
                yield index, str(error)


def _column(spec: Spec, ragged: Ragged) -> Column:
    sizes = [math.prod(shape) for shape in ragged.shapes]
    dtype = DTYPES[Datatype(spec.datatype)]
    # Before numpy sees the sizes: they are whatever the caller wrote, beyond 64 bits too.
    expected = sum(sizes) * dtype.itemsize
    if ragged.size != expected:
        rule = f"is {ragged.size} bytes long; its shapes need {expected}"
        raise InvalidInput(ragged.name, rule)
    flat = np.frombuffer(ragged.data, dtype=np.uint8 if dtype.kind == "b" else dtype)
    if dtype.kind == "b":
        # A byte other than 0 and 1 is no value of numpy's bool.
        flat = flat != 0
    ends = tuple(accumulate(sizes))
    return Column(name=ragged.name, spec=spec, shapes=ragged.shapes, flat=flat, ends=ends)


def _wrong_shapes(column: Column) -> Iterator[Fault]:
    # Many items are alike, and a message takes longer than the judgement.
    known: dict[Shape, str | None] = {}
    for index, shape in enumerate(column.shapes):
        if shape not in known:
            sizes = zip(column.spec.shape, shape, strict=True)
            rules = (_size_rule(column.spec, declared, size) for declared, size in sizes)
            rule = next(filter(None, rules), None)
            known[shape] = rule and str(InvalidInput(column.name, rule, shape))
        if (fault := known[shape]) is not None:
            yield index, fault


def _size_rule(spec: Spec, declared: int | str, size: int) -> str | None:
    if isinstance(declared, int):
        return None if size == declared else f"does not have the shape {_form(spec)}"
    if size < spec.min:
        return f"has size {size} in {declared}, below the minimum {spec.min}"
    if spec.max is not None and size > spec.max:
        return f"has size {size} in {declared}, above the maximum {spec.max}"
    return None


def _wrong_values(column: Column) -> Iterator[Fault]:
    spec, flat = column.spec, column.flat
    if flat.dtype.kind == "f":
        bad, rule = ~np.isfinite(flat), "is not a finite number"
    elif spec.vocab is not None:
        bad, rule = (flat < 0) | (flat >= spec.vocab), f"is not within 0 to {spec.vocab - 1}"
    else:
        return
    if not bad.any():
        return
    positions = np.flatnonzero(bad)
    items, first = np.unique(owners(positions, column.ends), return_index=True)
    for index, position in zip(items.tolist(), positions[first].tolist(), strict=True):
        start = column.ends[index - 1] if index else 0
        field = f"{column.name}[{position - start}]"
        yield index, str(InvalidInput(field, rule, flat[position].item()))


def _unequal_letters(columns: Mapping[str, Column], count: int) -> Iterator[Fault]:
    named = [
        (letter, axis, column)
        for column in columns.values()
        for axis, letter in enumerate(column.spec.shape)
        if isinstance(letter, str)
    ]
    if len({letter for letter, _, _ in named}) == len(named):
        return
    for index in range(count):
        sizes: dict[str, int] = {}
        for letter, axis, column in named:
            size = column.shapes[index][axis]
            if sizes.setdefault(letter, size) != size:
                rule = f"has size {size} in {letter}, which is {sizes[letter]} before"
                yield index, str(InvalidInput(column.name, rule, column.shapes[index]))
                break


def _form(spec: Spec) -> str:
    return f"[{', '.join(str(size) for size in spec.shape)}]"
