"""Hypothesis strategies for the records of the contract, and a maker of items for policies."""

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from batchedmodel_contract.inference.batch import BatchReply, Ragged
from batchedmodel_contract.inference.tensors import Datatype, Tensor, join_byte_elements
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.queue.items import Item, ItemId, Priority, RequestGroup

FIXED_SIZE = tuple(datatype for datatype in Datatype if datatype is not Datatype.BYTES)
"""Datatypes whose elements all have the same size."""

names = st.text(st.characters(codec="utf-8", exclude_characters=":"), min_size=1, max_size=8)
"""Names of tensors; without the mark that the batch extension reserves."""


def json_values(max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Anything that a JSON parser may return, half surrogate pairs and NaN included."""
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=8)
        | st.just("\ud800")
        | st.integers(min_value=10**300, max_value=10**301)
    )
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
        ),
        max_leaves=max_leaves,
    )


@st.composite
def element_data(draw: st.DrawFn, datatype: Datatype, elements: int) -> bytes:
    """The bytes of that many elements."""
    if datatype is Datatype.BYTES:
        texts = st.lists(st.binary(max_size=6), min_size=elements, max_size=elements)
        return join_byte_elements(iter(draw(texts)))
    size = elements * datatype.size
    return draw(st.binary(min_size=size, max_size=size))


@st.composite
def tensors(draw: st.DrawFn, name: str = "x") -> Tensor:
    """One tensor of any datatype and of a small shape, scalars and empty ones included."""
    datatype = draw(st.sampled_from(Datatype))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    data = draw(element_data(datatype, math.prod(shape)))
    return Tensor(name=name, datatype=datatype, shape=shape, data=data)


@st.composite
def ragged_tensors(draw: st.DrawFn, name: str, count: int) -> Ragged:
    """One tensor of each of `count` items, all of one rank, items of size zero included."""
    datatype = draw(st.sampled_from(Datatype))
    rank = draw(st.integers(0, 3))
    sizes = st.tuples(*[st.integers(0, 3)] * rank)
    shapes = tuple(draw(st.lists(sizes, min_size=count, max_size=count)))
    data = draw(element_data(datatype, sum(math.prod(shape) for shape in shapes)))
    return Ragged(name=name, datatype=datatype, shapes=shapes, parts=(data,))


@st.composite
def ragged_batches(draw: st.DrawFn, count: int, *, at_least: int = 0) -> tuple[Ragged, ...]:
    """Several tensors of the same items."""
    found = draw(st.lists(names, min_size=at_least, max_size=3, unique=True))
    return tuple(draw(ragged_tensors(name, count)) for name in found)


@st.composite
def batch_replies(draw: st.DrawFn) -> BatchReply:
    """Replies in which some items failed."""
    count = draw(st.integers(0, 5))
    statuses = st.sampled_from([200, 200, 400, 413, 500, 503])
    microseconds = st.integers(0, 10**9)
    return BatchReply(
        outputs=draw(ragged_batches(count)),
        statuses=tuple(draw(st.lists(statuses, min_size=count, max_size=count))),
        errors=tuple(
            draw(
                st.lists(
                    st.text(st.characters(codec="utf-8"), max_size=8),
                    min_size=count,
                    max_size=count,
                )
            )
        ),
        compute_seconds=draw(microseconds) / 1e6,
        queue_seconds=draw(microseconds) / 1e6,
        tokens=draw(st.integers(0, 2**40)),
        padded_tokens=draw(st.integers(0, 2**40)),
        passes=draw(st.integers(0, 100)),
        max_cost=draw(st.none() | st.integers(1, 2**40)),
        long_rows=draw(st.integers(0, 100)),
    )


@st.composite
def batch_settings(
    draw: st.DrawFn,
    *,
    largest_batch: int = 5,
    policies: Sequence[PolicyName] = tuple(PolicyName),
    most_workers: int = 1,
) -> BatchSettings:
    """Settings with small caps, so that short runs meet all of them."""
    size = draw(st.integers(1, largest_batch))
    edges = st.sets(st.integers(1, 40), max_size=3).map(sorted).map(tuple)
    return BatchSettings(
        policy=draw(st.sampled_from(policies)),
        max_batch_size=size,
        max_concurrent_batches=draw(st.sampled_from([1, most_workers])),
        max_wait_seconds=draw(st.sampled_from([0.0, 0.002, 0.02])),
        max_queue_size=draw(st.integers(size, size + 12)),
        request_timeout_seconds=draw(st.sampled_from([0.5, 30.0])),
        length_buckets=draw(edges),
    )


def an_item(
    number: int,
    *,
    arrived: float = 0.0,
    key: str = "a",
    length: int = 1,
    due: float | None = None,
    deadline: float = 1000.0,
    priority: Priority = Priority.NORMAL,
    yields: float = 0.0,
    request_group: RequestGroup | None = None,
) -> Item:
    """A waiting row of which only the interesting fields need to be given."""
    return Item(
        id=ItemId(number),
        key=key,
        length=length,
        arrived=arrived,
        due=deadline if due is None else due,
        deadline=deadline,
        priority=priority,
        yields=yields,
        request_group=request_group,
    )
