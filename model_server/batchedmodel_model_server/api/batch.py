"""The valid items of one batch as a handler's `forward` gets them: padded, or packed into one row.

Importable without torch, which is touched only when a handler asks for a tensor.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value")
Array = NDArray[Any]
ParamColumn = Array | tuple[str, ...]
"""One parameter of every row: numbers, or texts."""


class Packed:
    """One row that holds the items one behind the other, without padding between them."""

    def __init__(
        self, *, arrays: Mapping[str, Array], lengths: NDArray[np.int64], device: str
    ) -> None:
        self._arrays = arrays
        self._device = device
        self.lengths = lengths
        """Each item's length. Items of equal length lie side by side."""
        self.longest = int(lengths.max())
        self.total = int(lengths.sum())

    def __getitem__(self, name: str) -> Any:
        """The input as a torch tensor on the device, 1 x total x the other sizes."""
        return _tensor(self.array(name)[None], self._device)

    def array(self, name: str) -> Array:
        """The input as a numpy array on the host, total x the other sizes."""
        return _named(self._arrays, name, "a packed input")

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each item ends in the row."""
        return np.cumsum(self.lengths)

    @property
    def positions(self) -> Any:
        """Each token's place within its own item: an INT64 torch tensor, 1 x total."""
        starts = np.repeat(self.ends - self.lengths, self.lengths)
        return _tensor((np.arange(self.total) - starts)[None], self._device)


class Params:
    """What each item's request set, by the name of the parameter; its default where it set nothing.

    `batch.params["scale"]` belongs to the rows as `batch["x"]` does.
    """

    def __init__(self, columns: Mapping[str, ParamColumn], device: str) -> None:
        self._columns = columns
        self._device = device

    def __getitem__(self, name: str) -> Any:
        """A torch tensor on the device with one number for each row; of texts a tuple."""
        column = _named(self._columns, name, "a parameter")
        return column if isinstance(column, tuple) else _tensor(column, self._device)

    def __iter__(self) -> Iterator[str]:
        """The names that the handler declares."""
        return iter(self._columns)

    def array(self, name: str) -> Array:
        """A numpy array on the host with one value for each row, texts too."""
        return np.asarray(_named(self._columns, name, "a parameter"))


class Batch:
    """The valid items of one batch. Row i belongs to item i, whether padded or packed."""

    def __init__(
        self,
        *,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, NDArray[np.int64]],
        rows: int,
        device: str,
        handed_over: float,
        packed: Mapping[str, Array] | None = None,
        params: Mapping[str, ParamColumn] | None = None,
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        self._arrays = arrays
        self._sizes = sizes
        self._device = device
        self._packed = packed
        self.rows = rows
        self.handed_over = handed_over
        """When the batch joined the compute queue, in monotonic seconds."""
        self.params = Params(params or {}, device)
        self.adapters = adapters
        """The slot of each row's adapter, 0 for none; None: no row has one."""

    def __contains__(self, name: str) -> bool:
        """Whether the model has an input of this name."""
        return name in self._arrays or (self._packed is not None and name in self._packed)

    def __getitem__(self, name: str) -> Any:
        """The input as a torch tensor on the device, rows x the padded shape."""
        return _tensor(self.array(name), self._device)

    def array(self, name: str) -> Array:
        """The input as a numpy array on the host, rows x the padded shape."""
        if name not in self._arrays and self._packed is not None and name in self._packed:
            raise TypeError(f"this batch is not padded: {name} is in batch.packed()")
        return _named({**self._arrays, **(self._packed or {})}, name, "an input")

    def mask(self, letter: str) -> Any:
        """A boolean torch tensor on the device, rows x longest: True where an item has a value."""
        return _tensor(mask_of(_named(self._sizes, letter, "a letter")), self._device)

    def packed(self) -> Packed | None:
        """The batch as one row; None when it is padded.

        A handler that says `packs` must be able to do both: the self-test compares packed items
        with padded ones.
        """
        if self._packed is None:
            return None
        return Packed(arrays=self._packed, lengths=self.lengths, device=self._device)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Each item's size in the first lettered dimension; ones when all sizes are fixed."""
        for sizes in self._sizes.values():
            return sizes
        return np.ones(self.rows, dtype=np.int64)


def mask_of(sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True where a padded row has a value: rows x longest."""
    return np.arange(sizes.max(initial=0)) < sizes[:, None]


def _named(values: Mapping[str, _Value], name: str, kind: str) -> _Value:
    if name not in values:
        raise KeyError(f"{name} is not {kind}; known: {', '.join(values) or 'none'}")
    return values[name]


def _tensor(array: Array, device: str) -> Any:
    import torch

    return torch.from_numpy(array).to(device)
