"""A server of OpenAI embeddings behind: inputs in, vectors out.

`model`, `encoding_format`, `dimensions` and whatever else a body holds must be equal in calls that
share a request. The tokens that a shared request used are divided by the lengths of the inputs, so
that all callers' usage adds up to the server's; a caller that was alone gets the server's own.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.backends.upstream.protocol import (
    Ask,
    NotReady,
    ParsedRequest,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.backends.upstream.protocols import json_rows
from batchedmodel_sidecar.backends.upstream.protocols.json_values import Fields, read
from batchedmodel_sidecar.calls import Answer, Output, Row, Value
from batchedmodel_sidecar.errors import ModelNotFound, refuse_many
from batchedmodel_sidecar.protocols.json_bodies import NAMELESS
from batchedmodel_sidecar.protocols.protocol import Body

_INPUT: Final = "input"
_DATA: Final = "data"
_INDEX: Final = "index"
_USAGE: Final = "usage"
_COUNTED: Final = ("prompt_tokens", "total_tokens")
_OUTPUTS: Final = (Output(_DATA, Datatype.BYTES), Output(_USAGE, Datatype.INT64))
"""What an entry of `data` holds behind its index, and the usage."""
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_MOST_COUNTED: Final = 2**62  # a count is kept in 64 bits


class OpenAI(json_rows.JsonRows):
    """`POST /v1/embeddings`."""

    rows_field = _INPUT
    platform = "openai"

    async def check_ready(self, ask: Ask) -> None:
        """Every server that embeds lists its models, or has a health page; raises `NotReady`.

        One that wants a key for the list is there all the same. One that fails to make the list
        may still be well, and says so at the other page.
        """
        failed = None
        for path in ("/v1/models", "/health"):
            status, _ = await ask(path)
            if status < 500 and status != _NOT_FOUND:
                return
            if status != _NOT_FOUND:
                failed = failed or status
            if status == _UNAVAILABLE:
                break
        if failed is not None:
            raise NotReady(f"the model answers {failed} to the question for readiness")
        raise NotReady("the model answers 404 at /v1/models and at /health")

    def parse(
        self, body: Buffer, header_length: str | None, most_rows: int
    ) -> ParsedRequest | None:
        """One row for each input: a text, or a list of token ids; raises `InvalidInput`."""
        given, write = read(body, of_request=True)
        if given.get("model") == "":
            raise ModelNotFound(NAMELESS)
        inputs = _inputs(given.pop(_INPUT, None), most_rows)
        if not inputs:
            return None
        # Texts and token ids in one list are no request that a server knows.
        return json_rows.drafted(inputs, given, write, type(inputs[0]).__name__)

    def dealt(self, response: Response, rows: Sequence[Row], *, alone: bool) -> SplitReply:
        """One entry of `data` for each row, and its part of the usage; raises `InvalidInput`."""
        given, write = read(response.body)
        entries = given.pop(_DATA, None)
        if not isinstance(entries, list):
            raise InvalidInput(_DATA, "is not an array")
        by_place = {_place_taken(entry): entry for entry in entries}
        if len(entries) != len(rows) or by_place.keys() != set(range(len(rows))):
            raise InvalidInput(_DATA, f"has not one entry for each of {len(rows)} inputs")
        weights = [row.length for row in rows]
        usage = given.pop(_USAGE, None)
        counts = [_count(usage, name) for name in _COUNTED]
        parts = zip(*(shares(count, weights) for count in counts), strict=True)
        return SplitReply(
            outputs=_OUTPUTS,
            rows=[
                (
                    # Behind its index, which render puts in front.
                    Value((), b"," * bool(by_place[place]) + write(by_place[place])[1:]),
                    Value((len(part),), array("q", part).tobytes()),
                )
                for place, part in enumerate(parts)
            ],
            frame=_Frame(
                json_rows.beside(given, write, alone=alone),
                write(usage).decode() if alone and usage is not None else None,
            ),
        )

    def render(self, memo: Any, answer: Answer) -> Body:
        """The entries under their places in this request."""
        entries = [
            (b'{"index":%d' % place, behind.data) for place, (behind, _) in enumerate(answer.rows)
        ]
        frames: list[_Frame] = [reply.frame for reply in answer.replies]
        usage = frames[0].usage
        if usage is None or any(frame is not frames[0] for frame in frames):
            counts = [array("q", bytes(count.data)) for _, count in answer.rows]
            sums = {name: sum(count[i] for count in counts) for i, name in enumerate(_COUNTED)}
            usage = orjson.dumps(sums).decode()
        rest = json_rows.in_common([frame.rest for frame in frames])
        return json_rows.body_of(_DATA, entries, (*rest, (_USAGE, usage)))


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts of a total by weights, which add up to it: each ends at a whole number."""
    whole = sum(weights)
    ends = [total * weight // whole for weight in accumulate(weights, initial=0)]
    return [end - begin for begin, end in pairwise(ends)]


class _Frame(NamedTuple):
    rest: Fields
    usage: str | None
    """The server's own words, for a caller that was alone."""


def _inputs(given: Any, most_rows: int) -> list[Any]:
    """Each input: a text or a list of token ids; empty when they cannot be told apart.

    Raises `Rejected` for more than so many.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        return []
    kinds = set(map(type, given))
    if kinds == {int}:
        # One list of token ids is one input, however many it has.
        return [given] if min(given) >= 0 else []
    refuse_many(len(given), most_rows)
    return given if kinds in ({str}, {list}) else []


def _place_taken(entry: Any) -> int:
    """The index of an entry, which it is without from now on."""
    place = entry.pop(_INDEX, None) if isinstance(entry, dict) else None
    if type(place) is not int:
        raise InvalidInput(_DATA, f"has an entry without {_INDEX}")
    return place


def _count(usage: Any, name: str) -> int:
    """A number of tokens; 0 where the server says nothing of them."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count < _MOST_COUNTED else 0
