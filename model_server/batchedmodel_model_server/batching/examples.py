"""Made-up items that a declaration allows, for the warm-up and the self-test. Pure.

The numbers are drawn, always the same ones: equal tokens would hide it if items got mixed up.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from batchedmodel_contract.inference.batch import (
    BatchRequest,
    ragged,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_model_server.api.batch import Array
from batchedmodel_model_server.api.handler import Spec
from batchedmodel_model_server.batching.declaration import Declaration
from batchedmodel_model_server.batching.items import Collated, Examined, collate, examine

SEED: Final = 20


def examples(declaration: Declaration, rows: int, length: int) -> Collated:
    """Valid items, each `length` long where the declaration allows it."""
    sizes = {letter: [size] * rows for letter, size in declaration.sizes_of(length).items()}
    return collate(declaration, _examined(declaration, rows, sizes))


def unlike_examples(declaration: Declaration, lengths: Sequence[int], seed: int = SEED) -> Examined:
    """Valid items that differ in size as these lengths do, from the shortest that is allowed on."""

    def within(least: int, largest: int) -> list[int]:
        sizes = [min(least - 1 + length, largest) for length in lengths]
        if min(sizes) == largest:
            # The shortest and the longest differ wherever the declaration lets them.
            return [least if length == min(lengths) else largest for length in lengths]
        return sizes

    sizes = {letter: within(*bounds) for letter, bounds in declaration.bounds.items()}
    return _examined(declaration, len(lengths), sizes, seed)


def _examined(
    declaration: Declaration, count: int, sizes: Mapping[str, Sequence[int]], seed: int = SEED
) -> Examined:
    """Items by the sizes that each letter has in them."""
    numbers = np.random.default_rng(seed)
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
