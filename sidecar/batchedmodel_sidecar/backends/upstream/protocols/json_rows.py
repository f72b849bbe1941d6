"""Protocols whose rows are the elements of one array in a JSON object: what V1 and OpenAI share.

A single value beside the rows of an answer (the model's name, its version) is true for each caller.
A list or an object may hold something for each row, in an order that only its author knows: it
passes to a caller who was alone, and an answer for several callers that has one cannot be divided.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from batchedmodel_contract.inference.description import CostRule, ModelDescription
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.backends.upstream.protocol import (
    Ask,
    BackendProtocol,
    BackendRequest,
    Envelope,
    ParsedRequest,
    estimated_length,
)
from batchedmodel_sidecar.backends.upstream.protocols.json_values import (
    Fields,
    Write,
    refuse_large,
    refuse_lists,
    spliced,
    texts,
)
from batchedmodel_sidecar.calls import Row, Value
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.protocols.protocol import Body


class JsonRows(BackendProtocol):
    """What such protocols do alike."""

    rows_field: ClassVar[str]
    """The field of a request that holds the rows."""
    platform: ClassVar[str]

    def __init__(self, name: str) -> None:
        self._name = name

    async def describe(self, ask: Ask) -> ModelDescription:
        """Such a protocol has no metadata that matters here."""
        return ModelDescription(
            name=self._name,
            version="",
            platform=self.platform,
            inputs=(),
            outputs=(),
            cost_rule=CostRule.ROWS,
        )

    def backend_request(self, rows: Sequence[Row], envelope: Envelope) -> BackendRequest:
        """The rows in their field, and beside them what their calls said."""
        elements = [(row.values[0].data,) for row in rows]
        parts = spliced(self.rows_field, elements, after=envelope.frame)
        return BackendRequest(path=envelope.path, headers=envelope.headers, parts=parts)


def drafted(
    elements: Sequence[Any], given: Mapping[str, Any], write: Write, shapes: Hashable = None
) -> ParsedRequest:
    """One row for each element; whatever else was given must be equal in rows of one request.

    Raises `InvalidInput` where that is too large.
    """
    beside = texts(given, write)
    refuse_large(beside)
    values = [Value((), write(element)) for element in elements]
    return ParsedRequest(
        rows=tuple(Row(values=(value,), length=estimated_length(value.data)) for value in values),
        frame=tuple(sorted(beside)),
        shapes=shapes,
    )


def body_of(field: str, elements: Iterable[Sequence[Buffer]], frame: Fields) -> Body:
    """An answer with these elements in their field."""
    data, *tail = spliced(field, elements, after=frame)
    return Body(data=data, tail=tuple(tail))


def beside(given: Mapping[str, Any], write: Write, *, alone: bool) -> Fields:
    """The frame of an answer; raises `InvalidInput` when it is for several and has no one owner."""
    if not alone:
        refuse_lists(given.items())
    return texts(given, write)


def in_common(frames: Sequence[Fields]) -> Fields:
    """The frame of a call whose rows were answered together or in several requests.

    Of single values that differ, such as times, the first stands; raises `Unserved` for others.
    """
    first = frames[0]
    for name, text in first:
        if text.startswith(("[", "{")) and any((name, text) not in frame for frame in frames):
            message = f"the model answered parts of this request with different {name}"
            raise Unserved(message, status=502)
    return first
