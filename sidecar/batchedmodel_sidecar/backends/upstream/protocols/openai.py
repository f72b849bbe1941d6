"""A server of OpenAI embeddings behind: inputs in, vectors out, all of it text as it came.

`model`, `encoding_format`, `dimensions` and whatever else a body holds must be equal in calls that
share a request. The tokens that a shared request used are divided by the lengths of the inputs, so
that all callers' usage adds up to the server's; a caller that was alone gets the server's own.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import re
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.tensors import Buffer, Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.answers import Answer, Output
from batchedmodel_sidecar.backends.upstream.protocol import (
    Ask,
    NotReady,
    ParsedRequest,
    Response,
    SplitReply,
)
from batchedmodel_sidecar.backends.upstream.protocols import json_rows, json_text
from batchedmodel_sidecar.calls import Row, Value
from batchedmodel_sidecar.errors import ModelNotFound, refuse_many
from batchedmodel_sidecar.protocols.adapter import Body
from batchedmodel_sidecar.protocols.json_bodies import NAMELESS

_INPUT: Final = "input"
_DATA: Final = "data"
_INDEX: Final = "index"
_USAGE: Final = "usage"
_COUNTED: Final = ("prompt_tokens", "total_tokens")
_OUTPUTS: Final = (
    Output(_DATA, Datatype.BYTES),
    Output(_DATA, Datatype.BYTES),
    Output(_USAGE, Datatype.INT64),
)
"""An entry of `data` up to its index, what is behind the index, and the usage."""
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_TOKEN_IDS: Final = re.compile(r"\[\s*[0-9][^\[{\"]*\]")
"""A list of numbers and words, without any list, object or text in it."""
_NO_TOKEN_ID: Final = re.compile(r",\s*[^\s0-9]")
_MOST_DIGITS: Final = 18  # of what counts anything; int() itself refuses some thousands of them


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
        given = json_text.checked_fields(body, of_request=True)
        if given.get("model") == '""':
            raise ModelNotFound(NAMELESS)
        inputs = _inputs(given.pop(_INPUT, ""), most_rows)
        if not inputs:
            return None
        # Texts and token ids in one list are no request that a server knows.
        kind = inputs[0][0]
        return json_rows.drafted(inputs, given, kind)

    def dealt(self, response: Response, rows: Sequence[Row], *, alone: bool) -> SplitReply:
        """One entry of `data` for each row, and its part of the usage; raises `InvalidInput`."""
        given = json_text.checked_fields(response.body)
        entries = json_text.elements(given.pop(_DATA, ""), _DATA)
        placed = sorted(map(_placed, entries))
        if [one.place for one in placed] != list(range(len(rows))):
            raise InvalidInput(_DATA, f"has not one entry for each of {len(rows)} inputs")
        weights = [row.length for row in rows]
        usage = given.pop(_USAGE, None)
        counts = [_count(usage, name) for name in _COUNTED]
        parts = zip(*(shares(count, weights) for count in counts), strict=True)
        return SplitReply(
            outputs=_OUTPUTS,
            rows=[
                (
                    json_rows.value_of(entry.before),
                    json_rows.value_of(entry.behind),
                    Value((len(part),), array("q", part).tobytes()),
                )
                for entry, part in zip(placed, parts, strict=True)
            ],
            frame=_Frame(json_rows.beside(given, alone=alone), usage if alone else None),
        )

    def render(self, memo: Any, answer: Answer) -> Body:
        """The entries under their places in this request."""
        entries = [
            (before.data, str(index).encode(), behind.data)
            for index, (before, behind, _) in enumerate(answer.rows)
        ]
        frames: list[_Frame] = [said.frame for said in answer.said]
        usage = frames[0].usage
        if usage is None or any(frame is not frames[0] for frame in frames):
            counts = [array("q", bytes(count.data)) for *_, count in answer.rows]
            sums = {name: sum(count[i] for count in counts) for i, name in enumerate(_COUNTED)}
            usage = orjson.dumps(sums).decode()
        rest = json_rows.in_common([frame.rest for frame in frames])
        return json_rows.body_of(_DATA, entries, [*rest, (_USAGE, usage)])


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts of a total by weights, which add up to it: the largest remainders round up."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    remainders = sorted(
        range(len(weights)), key=lambda index: total * weights[index] % whole, reverse=True
    )
    for index in remainders[: total - sum(parts)]:
        parts[index] += 1
    return parts


class _Frame(NamedTuple):
    rest: json_rows.Frame
    usage: str | None
    """The server's own words, for a caller that was alone."""


def _inputs(text: str, most_rows: int) -> list[str]:
    """The text of each input; empty when it is no input that can be told apart.

    Raises `InvalidInput`, and `Rejected` for more than so many.
    """
    if text.startswith('"'):
        return [text]
    if not text.startswith("["):
        return []
    if _TOKEN_IDS.fullmatch(text):
        # One list of token ids is one input, however many it has.
        return [] if _NO_TOKEN_ID.search(text) else [text]
    refuse = partial(refuse_many, most=most_rows)
    inputs = json_text.elements(text, _INPUT, refuse)
    refuse(len(inputs))
    return inputs if {one[0] for one in inputs} in ({'"'}, {"["}) else []


class _Placed(NamedTuple):
    place: int
    before: str
    """The entry up to its index; another index makes it another caller's, nothing else changed."""
    behind: str


def _placed(entry: str) -> _Placed:
    given = json_text.fields(entry, _DATA)
    text = given.get(_INDEX, "")
    if not _is_number(text):
        raise InvalidInput(_DATA, f"has an entry without {_INDEX}")
    fields = list(given.items())
    place = list(given).index(_INDEX)
    before = json_text.object_of([*fields[:place], (_INDEX, "")])[: -len("}")]
    behind = json_text.object_of(fields[place + 1 :])[len("{") :]
    return _Placed(int(text), before, "," * (place + 1 < len(fields)) + behind)


def _count(usage: str | None, name: str) -> int:
    """A number of tokens; 0 where the server says nothing of them."""
    if usage is None or not usage.startswith("{"):
        return 0
    text = json_text.fields(usage, _USAGE).get(name, "")
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
