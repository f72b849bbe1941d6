"""What the sidecar and its preparing process send each other. Pure.

Messages have a head of fixed size: how long the rest is, the number of the request, and what it is.
Both ends are this program, started together, and nobody else holds the socket, so values are
pickled.
"""

import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.errors import ModelNotFound, Rejected
from batchedmodel_sidecar.generation.native.requests.text_request import TextEndpoint, TextRequest

_HEAD: Final = struct.Struct("<IQB")
_MODEL: Final = 255
_ENDPOINTS: Final[Sequence[TextEndpoint]] = tuple(TextEndpoint)
_READ: Final = 0
_REFUSED: Final = 1

Refusal = InvalidInput | Rejected
"""What `TextPreparer` raises."""


class Model(NamedTuple):
    """The model that the bodies behind this message are for."""

    name: str
    description: GenerationDescription
    tokenizer_json: bytes


class Message(NamedTuple):
    """Any message, as it came."""

    number: int
    kind: int
    content: bytes


def write_model(model: Model) -> list[Buffer]:
    """The parts of such a message."""
    content = pickle.dumps(tuple(model))
    return [_HEAD.pack(len(content), 0, _MODEL), content]


def write_body(number: int, endpoint: TextEndpoint, body: Buffer) -> list[Buffer]:
    """The parts of a message with a body to be read."""
    return [_HEAD.pack(len(body), number, _ENDPOINTS.index(endpoint)), body]


def write_request(number: int, request: TextRequest) -> bytes:
    """The answer to a body."""
    content = pickle.dumps(request)
    return _HEAD.pack(len(content), number, _READ) + content


def write_refusal(number: int, error: Refusal) -> bytes:
    """The answer to a body that asks for what there is not."""
    content = pickle.dumps((type(error), error.args, vars(error)))
    return _HEAD.pack(len(content), number, _REFUSED) + content


def read_model(message: Message) -> Model | None:
    """The model in a message; None where it is a body."""
    return Model(*pickle.loads(message.content)) if message.kind == _MODEL else None


def endpoint_of(message: Message) -> TextEndpoint:
    """Where the body in a message was sent to."""
    return _ENDPOINTS[message.kind]


def read_answer(message: Message) -> TextRequest | Refusal:
    """What came of a body."""
    content: Any = pickle.loads(message.content)
    if message.kind == _READ:
        request: TextRequest = content
        return request
    kind, args, state = content
    assert kind in (InvalidInput, Rejected, ModelNotFound), "nothing else is raised there: our bug"
    # Not by way of `__init__`, whose arguments are not known any more.
    error: Refusal = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class MessageReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are whole now."""
        kept = self._kept
        kept += data
        begin = 0
        while len(kept) - begin >= _HEAD.size:
            length, number, kind = _HEAD.unpack_from(kept, begin)
            end = begin + _HEAD.size + length
            if end > len(kept):
                break
            content = bytes(memoryview(kept)[begin + _HEAD.size : end])
            begin = end
            yield Message(number, kind, content)
        del kept[:begin]
