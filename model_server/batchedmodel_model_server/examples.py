"""Items that a declaration allows, made up: for the warm-up and for the self-test.

Pure. The numbers are drawn, always the same ones, because equal tokens would hide whatever gets
mixed up between items.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from batchedmodel_contract.batch_wire import BatchRequest, ragged
from batchedmodel_contract.tensors import Datatype
from batchedmodel_model_server.batch import Array
from batchedmodel_model_server.collate import Collated, collate
from batchedmodel_model_server.declaration import Declaration
from batchedmodel_model_server.handler import Spec
from batchedmodel_model_server.validation import Examined, examine

_SEED: Final = 20


def examples(declaration: Declaration, rows: int, length: int) -> Collated:
    """Valid items, each `length` long where the declaration allows it."""
    return collate(declaration, examined_examples(declaration, [length] * rows))


def examined_examples(declaration: Declaration, lengths: Sequence[int]) -> Examined:
    """One valid item for each length, or for what the declaration allows of it."""
    return _examined(
        declaration,
        len(lengths),
        lambda least, largest: [min(max(length, least), largest) for length in lengths],
    )


def unlike_examples(declaration: Declaration, lengths: Sequence[int]) -> Examined:
    """Valid items that differ in size as these lengths do, from the shortest that is allowed on.

    The shortest and the longest differ wherever the declaration lets them.
    """

    def within(least: int, largest: int) -> list[int]:
        sizes = [min(least - 1 + length, largest) for length in lengths]
        if min(sizes) == largest:
            return [least if length == min(lengths) else largest for length in lengths]
        return sizes

    return _examined(declaration, len(lengths), within)


def _examined(
    declaration: Declaration, count: int, sizes_within: Callable[[int, int], list[int]]
) -> Examined:
    """Items by the sizes that each letter has in them, given its least and its largest."""
    numbers = np.random.default_rng(_SEED)
    sizes = {letter: sizes_within(*bounds) for letter, bounds in declaration.bounds.items()}
    inputs = []
    for name, spec in declaration.inputs.items():
        items = []
        for index in range(count):
            shape = tuple(
                sizes[size][index] if isinstance(size, str) else size for size in spec.shape
            )
            items.append((shape, _values(spec, shape, numbers).tobytes()))
        inputs.append(ragged(name, Datatype(spec.datatype), items))
    return examine(declaration, BatchRequest(inputs=tuple(inputs)))


def _values(spec: Spec, shape: tuple[int, ...], numbers: np.random.Generator) -> Array:
    if spec.dtype.kind == "f":
        return numbers.standard_normal(shape).astype(spec.dtype)
    # Where nothing says how large an integer may be, only the smallest are safe to look up.
    return numbers.integers(0, spec.vocab or 2, shape).astype(spec.dtype)
