"""LoRA layers: adapters in the slots of a device, and their part in a pass of the base.

Modules get a forward hook when the first adapter needs it. Without an adapter in the batch a hook
does nothing. Otherwise it adds to the rows that have one and touches no other.

An adapter is computed in one of two ways. In place, each run of neighbours with one adapter is two
small products. Gathered, the tokens of each adapter are brought together, filled up to equal
counts, and computed by two batched products. Neither serves alone: on two cores 64 texts of 16
adapters take three times as long in place, long rows of unequal lengths up to eight times as long
gathered, and a lone text twice as long.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_model_server.api.adapters import AdapterBounds, AdapterWeights, LowRank
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.lora.files import read_adapter, sizes_of

Slots = NDArray[np.int64]
Shape = tuple[int, ...]
PADDING_PER_RUN: Final = 16
PADDING_PER_RUN_IN_HALVES: Final = 64
"""A small product of halves costs a CPU three times as much as one of float32, tokens no more."""
_MIN_GATHERED_RUNS: Final = 4
"""As few are computed in place in the time that gathering takes."""
_FLOAT32_BYTES: Final = 4
_LOOKS: Final = 4
"""Passes of the base that are looked at. In one of them a table may happen to have a row's size."""


class Run(NamedTuple):
    """Neighbouring tokens with one adapter."""

    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Tokens by adapter, filled up to equal counts."""

    slots: Slots
    """groups."""
    places: Slots
    """groups x longest: a token of the group; what fills up repeats its first."""
    real: NDArray[np.bool_]
    """groups x longest: False for what fills up."""


def runs_of(slots: Slots) -> tuple[Run, ...]:
    """The runs of tokens that have an adapter. `slots`: of each token, 0 for none."""
    cuts = np.flatnonzero(np.diff(slots)) + 1
    begins = np.concatenate([[0], cuts]).astype(np.int64)
    ends = np.concatenate([cuts, [len(slots)]]).astype(np.int64)
    of_run = slots[begins]
    return tuple(
        Run(slot, begin, end)
        for slot, begin, end in zip(of_run.tolist(), begins.tolist(), ends.tolist(), strict=True)
        if slot
    )


def groups_of(slots: Slots) -> Groups:
    """The same tokens, by adapter."""
    tokens = np.flatnonzero(slots)
    order = tokens[np.argsort(slots[tokens], kind="stable")]
    found, begins, counts = np.unique(slots[order], return_index=True, return_counts=True)
    nth = np.arange(counts.max())
    real = nth < counts[:, None]
    places = order[begins[:, None] + np.where(real, nth, 0)]
    return Groups(slots=found, places=places, real=real)


def chosen(slots: Slots, padding_per_run: int) -> tuple[Run, ...] | Groups:
    """The cheaper way for tokens of which at least one has an adapter.

    `padding_per_run`: how many tokens that fill up cost no more than a run's two products.
    """
    runs, counts = runs_of(slots), np.bincount(slots)[1:]
    padding = int(np.count_nonzero(counts) * counts.max() - counts.sum())
    if len(runs) < _MIN_GATHERED_RUNS or padding > padding_per_run * len(runs):
        return runs
    return groups_of(slots)


def of_rows(rows: Slots, lengths: Slots, *, packed: bool) -> Mapping[Shape, Slots]:
    """Slots by the leading sizes of what modules are given in a batch of rows.

    Padded: rows x longest; packed, where the batch can be: 1 x all tokens; heads: rows.
    """
    longest = int(lengths.max())
    found = {(len(rows), longest): np.repeat(rows, longest), (len(rows),): rows}
    if not packed:
        # What has these sizes is something else, such as a table that all rows share.
        return found
    return {(1, int(lengths.sum())): np.repeat(rows, lengths)} | found


def of_step(parts: Slots, ends: Slots, wanted: Slots) -> Mapping[Shape, Slots]:
    """The same in a step of generation: 1 x tokens, and 1 x tokens whose scores are wanted.

    `ends`: the place of each part's last token; `wanted`: places of tokens.
    """
    tokens = np.repeat(parts, np.diff(ends, prepend=-1))
    return {(1, len(wanted)): tokens[wanted], (1, len(tokens)): tokens}


class Stack:
    """Zeros where a slot has nothing for this module."""

    def __init__(self, bounds: AdapterBounds, sizes: tuple[int, int], like: Any) -> None:
        """`sizes`: inputs and outputs of the module; `like`: its weight."""
        inputs, outputs = sizes
        self.a: Final = like.new_zeros(bounds.slots, inputs, bounds.max_rank)
        self.b: Final = like.new_zeros(bounds.slots, bounds.max_rank, outputs)
        self.ranks: Final[dict[int, int]] = {}
        """Of the slots that have something."""

    def put(self, slot: int, pair: LowRank) -> None:
        """Into a slot that is empty."""
        rank = int(pair.a.shape[1])
        self.a[slot - 1, :, :rank].copy_(pair.a)
        self.b[slot - 1, :rank].copy_(pair.b)
        self.ranks[slot] = rank

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        if self.ranks.pop(slot, None) is not None:
            self.a[slot - 1].zero_()
            self.b[slot - 1].zero_()


def in_place(stack: Stack, runs: tuple[Run, ...], given: Any, output: Any) -> None:
    """Add to the runs' rows of `output`. Both are tokens x the module's sizes."""
    for slot, begin, end in runs:
        rank = stack.ranks.get(slot)
        if rank is not None:
            inner = given[begin:end] @ stack.a[slot - 1, :, :rank]
            output[begin:end].addmm_(inner, stack.b[slot - 1, :rank])


def gathered(
    stack: Stack, index: Any, slots: Slots, places: Any, real: Any, given: Any, output: Any
) -> None:
    """Add to the groups' rows of `output`.

    `real`: which of the flat `places` fill nothing up; None where all are such. They are numbers
    and no mask, as how many a mask has is known to a GPU only, and the host would wait for it.
    """
    rank = max((stack.ranks.get(slot, 0) for slot in slots.tolist()), default=0)
    if not rank:
        return
    a, b = stack.a[:, :, :rank].index_select(0, index), stack.b[:, :rank].index_select(0, index)
    flat = places.view(-1)
    tokens = given.index_select(0, flat).view(*places.shape, -1)
    delta = ((tokens @ a) @ b).view(-1, output.shape[-1])
    if real is not None:
        flat, delta = flat.index_select(0, real), delta.index_select(0, real)
    output.index_add_(0, flat, delta)


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
