"""The adapters in a device's slots, and their part in a pass of the base.

Modules get a forward hook when the first adapter needs it. Without an adapter in the batch a hook
does nothing. Otherwise it adds to the rows that have one and touches no other.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchedmodel_model_server.api.adapters import AdapterBounds, AdapterWeights
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.lora.mix import (
    PADDING_PER_RUN,
    PADDING_PER_RUN_IN_HALVES,
    Groups,
    Run,
    Shape,
    Slots,
    chosen,
)
from batchedmodel_model_server.lora.stack import Stack, gathered, in_place
from batchedmodel_model_server.lora.weights import read_adapter, sizes_of

_FLOAT32_BYTES: Final = 4
_LOOKS: Final = 4
"""Passes of the base that are looked at. In one of them a table may happen to have a row's size."""


class AdapterBank:
    """Implements `Adapters`. `put`, `clear` and `using` run on the device thread."""

    def __init__(
        self,
        modules: Mapping[str, Any],
        bounds: AdapterBounds,
        *,
        labels: int | None = None,
    ) -> None:
        """`modules`: those of the base by name; `labels`: how many it has, if it classifies."""
        self.modules: Final = modules
        """Of the base, by name."""
        self._bounds: Final = bounds
        self._labels: Final = labels
        self._stacks: Final[dict[str, Stack]] = {}
        self._heads: Final[dict[str, dict[int, Mapping[str, Any]]]] = {}
        self._pass: _Pass | None = None
        self._looks_left = _LOOKS
        self._given: Final[dict[str, Shape]] = {}
        """Sizes of what a module was given that are those of no row's tokens."""
        weights = (one.weight for one in modules.values() if sizes_of(one) is not None)
        is_half = next(weights).element_size() < _FLOAT32_BYTES
        self._padding: Final = PADDING_PER_RUN_IN_HALVES if is_half else PADDING_PER_RUN

    def read(self, folder: Path) -> AdapterWeights:
        """An adapter's files, checked against the base; raises `CannotLoad`."""
        weights = read_adapter(folder, self.modules, self._bounds.max_rank, self._labels)
        for name in weights.modules:
            if name in self._given:
                sizes = " x ".join(map(str, self._given[name]))
                raise CannotLoad(
                    f"{folder}: it changes {name}, which the base gives {sizes or 'no'} vectors "
                    "that are not the tokens of rows: such modules take no adapter"
                )
        return weights

    @property
    def has_looked(self) -> bool:
        """Whether it is known what the base gives its modules."""
        return not self._looks_left

    @contextmanager
    def looking(self, shapes: Collection[Shape]) -> Iterator[None]:
        """A pass of the base alone, with rows of these sizes, in which that is found out."""
        self._looks_left -= 1

        def look(name: str, module: Any, given: tuple[Any, ...]) -> None:
            sizes = tuple(given[0].shape[:-1]) if given else ()
            if sizes not in shapes and sizes != (1,):
                self._given[name] = sizes

        hooks = [
            module.register_forward_pre_hook(partial(look, name))
            for name, module in self.modules.items()
            if sizes_of(module) is not None
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def bytes_of(self, weights: AdapterWeights) -> int:
        """Bytes of main memory that it takes."""
        pairs = (part for pair in weights.modules.values() for part in pair)
        heads = (part for head in weights.heads.values() for part in head.values())
        return sum(int(part.nbytes) for part in (*pairs, *heads))

    def labels_of(self, weights: AdapterWeights) -> tuple[str, ...] | None:
        """By which it classifies; None: by those of the base."""
        return weights.labels

    def put(self, slot: int, weights: AdapterWeights) -> None:
        """Copy it into a slot, in place of what was there."""
        import torch

        if not 1 <= slot <= self._bounds.slots:
            raise ValueError(f"slot {slot} is not one of 1 to {self._bounds.slots}")
        self.clear(slot)
        with torch.inference_mode():
            for name, pair in weights.modules.items():
                self._stack(name).put(slot, pair)
            for name, head in weights.heads.items():
                device = next(self.modules[name].parameters()).device
                self._of_head(name)[slot] = {own: value.to(device) for own, value in head.items()}

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        import torch

        with torch.inference_mode():
            for stack in self._stacks.values():
                stack.clear(slot)
        for slots in self._heads.values():
            slots.pop(slot, None)

    @contextmanager
    def using(self, slots: Mapping[Shape, Slots], rows: Slots | None = None) -> Iterator[None]:
        """Within it the base computes with these adapters.

        `slots`: by the leading sizes of what modules are given; see `mix.of_rows`. `rows`: the slot
        of each row, where the pass has rows.
        """
        self._pass = _Pass(slots, rows, self._padding)
        try:
            yield
        finally:
            self._pass = None

    def _stack(self, name: str) -> Stack:
        if name not in self._stacks:
            module = self.modules[name]
            sizes = sizes_of(module)
            assert sizes is not None, "reading checks this"
            self._stacks[name] = Stack(self._bounds, sizes, module.weight)
            module.register_forward_hook(partial(self._add, name))
        return self._stacks[name]

    def _of_head(self, name: str) -> dict[int, Mapping[str, Any]]:
        if name not in self._heads:
            self._heads[name] = {}
            self.modules[name].register_forward_hook(partial(self._replace, name))
        return self._heads[name]

    def _add(self, name: str, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if self._pass is None:
            return
        stack, given = self._stacks[name], args[0]
        if not stack.ranks:
            return
        way = self._pass.way(tuple(given.shape[:-1]), given.device)
        flat, out = given.reshape(-1, given.shape[-1]), output.view(-1, output.shape[-1])
        if isinstance(way, _OnDevice):
            gathered(stack, way.slots, way.groups.slots, way.places, way.real, flat, out)
        else:
            in_place(stack, way, flat, out)

    def _replace(self, name: str, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Compute the head again for the rows of each adapter that has one of its own."""
        import torch

        if self._pass is None or not self._heads[name]:
            return
        current, given = self._pass, args[0]
        axis, slots = current.axis(tuple(given.shape), tuple(output.shape))
        if slots is None:
            return
        self._pass = None  # The hook runs in there too.
        try:
            for slot, own in self._heads[name].items():
                places = torch.from_numpy((slots == slot).nonzero()[0]).to(given.device)
                if len(places):
                    part = given.index_select(axis, places)
                    answer = torch.func.functional_call(module, dict(own), (part, *args[1:]))
                    output.index_copy_(axis, places, answer)
        finally:
            self._pass = current


class _OnDevice:
    """Groups whose numbers lie on the device."""

    def __init__(self, groups: Groups, device: Any) -> None:
        import torch

        self.groups = groups
        self.slots = torch.from_numpy(groups.slots - 1).to(device)
        self.places = torch.from_numpy(groups.places).to(device)
        real = groups.real.ravel().nonzero()[0]
        self.real = None if groups.real.all() else torch.from_numpy(real).to(device)


@dataclass(slots=True)
class _Pass:
    """What a pass decided once for all its modules."""

    slots: Mapping[Shape, Slots]
    rows: Slots | None
    padding: int
    """See `mix.chosen`."""
    ways: dict[Shape, tuple[Run, ...] | _OnDevice] = field(default_factory=dict)

    def way(self, shape: Shape, device: Any) -> tuple[Run, ...] | _OnDevice:
        """How tokens that lie so are computed; raises `NotImplementedError`."""
        if shape not in self.ways:
            slots = self.slots.get(shape)
            if slots is None and shape == (1,):
                return ()  # The pooler of a packed row, which gives a vector that nobody asks for.
            if slots is None:
                raise NotImplementedError(
                    f"an adapter of a module that is given {' x '.join(map(str, shape))} vectors, "
                    "which are neither the tokens of the batch nor its rows"
                )
            way = chosen(slots, self.padding) if slots.any() else ()
            self.ways[shape] = _OnDevice(way, device) if isinstance(way, Groups) else way
        return self.ways[shape]

    def axis(self, given: Shape, output: Shape) -> tuple[int, Slots | None]:
        """Along which axis a head's rows or tokens lie, and their slots; None: it has neither."""
        rows = self.rows
        if rows is not None and given[0] == output[0] == len(rows):
            return 0, rows
        # The pooler of a packed row gives one vector, which nobody asks for.
        return 1, self.slots.get(given[:-1]) if given[:-1] == output[:-1] else None
