"""What the model server says of the model, and what it is ordered to do: contents of such frames.

These are rare, so they are JSON; the tokenizer's file is bytes behind it. Readers raise
`InvalidInput`.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchedmodel_contract.generation.description import (
    GenerationDescription,
    generation_from_mapping,
)
from batchedmodel_contract.inference.description import ModelDescription, description_from_metadata
from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import readable
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import AdapterState, adapter_state_from_mapping

_LENGTH: Final = struct.Struct("<I")
_MAX_HEAD_BYTES: Final = 8 << 20
"""Of the JSON in MODEL: twice what a PROFILE may have. To read more stops the loop for long."""
_ANSWER: Final = struct.Struct("<H")


class State(NamedTuple):
    """STATE: the model's state."""

    state: ModelState
    detail: str
    version: str | None = None
    """The version that is READY. The one before it goes on with requests that were read for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """MODEL: all that a sidecar must know before the first request for a version."""

    description: ModelDescription
    profile: Profile
    generation: GenerationDescription | None = None
    tokenizer: Buffer = b""
    """The file of the tokenizer; empty where the model takes and makes no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """ADAPTERS: all of them, and the labels of those that classify by labels of their own."""

    states: tuple[AdapterState, ...]
    labels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By number, of adapters whose labels were not sent on this connection yet."""


class Order(StrEnum):
    """ORDER: a call of the model repository."""

    INDEX = "index"
    LOAD = "load"
    UNLOAD = "unload"


class Answer(NamedTuple):
    """ANSWER: what came of an order, in the form of Triton's repository extension."""

    status: int
    """As in HTTP."""
    body: bytes
    """JSON."""


def write_state(state: State) -> bytes:
    """The content of a frame."""
    return json.dumps(state._asdict(), ensure_ascii=False).encode(errors="replace")


@readable("state")
def read_state(content: Buffer) -> State:
    """What `write_state` wrote."""
    state, detail, version = _object(content, "state", "detail", "version")
    return State(ModelState(state), str(detail), None if version is None else str(version))


def write_model(model: ServedModel) -> list[Buffer]:
    """The parts of a frame."""
    generation = None if model.generation is None else model.generation.to_mapping()
    head = json.dumps(
        {
            "description": model.description.to_metadata(),
            "profile": model.profile.to_mapping(),
            "generation": generation,
        }
    ).encode()
    return [_LENGTH.pack(len(head)), head, model.tokenizer]


@readable("model")
def read_model(content: memoryview) -> ServedModel:
    """What `write_model` wrote."""
    (length,) = _LENGTH.unpack_from(content)
    if length > _MAX_HEAD_BYTES:
        raise ValueError(f"{length} bytes of JSON, more than {_MAX_HEAD_BYTES}")
    end = _LENGTH.size + length
    described, profile, generation = _object(
        content[_LENGTH.size : end], "description", "profile", "generation"
    )
    return ServedModel(
        description=description_from_metadata(described),
        profile=profile_from_mapping(profile),
        generation=None if generation is None else generation_from_mapping(generation),
        tokenizer=bytes(content[end:]),
    )


def write_profile(profile: Profile) -> bytes:
    """The content of a frame."""
    return json.dumps(profile.to_mapping()).encode()


@readable("profile")
def read_profile(content: Buffer) -> Profile:
    """What `write_profile` wrote."""
    return profile_from_mapping(json.loads(bytes(content)))


def write_adapters(adapters: Adapters) -> bytes:
    """The content of a frame."""
    states = [state.to_mapping() for state in adapters.states]
    labels = [[number, list(names)] for number, names in adapters.labels.items()]
    return json.dumps({"states": states, "labels": labels}).encode(errors="replace")


@readable("adapters")
def read_adapters(content: Buffer) -> Adapters:
    """What `write_adapters` wrote."""
    states, labels = _object(content, "states", "labels")
    return Adapters(
        states=tuple(map(adapter_state_from_mapping, states)),
        labels={int(number): tuple(map(str, names)) for number, names in labels},
    )


def write_engine(version: str) -> bytes:
    """The content of ENGINE: the version whose texts it makes."""
    return version.encode()


@readable("version")
def read_engine(content: Buffer) -> str:
    """What `write_engine` wrote; RELEASE has the same content."""
    return str(content, "utf-8")


def write_order(order: Order, body: bytes) -> list[Buffer]:
    """The parts of a frame; `body`: JSON as the caller sent it, or empty."""
    name = order.encode()
    return [_LENGTH.pack(len(name)), name, body]


@readable("order")
def read_order(content: memoryview) -> tuple[Order, bytes]:
    """What `write_order` wrote."""
    (length,) = _LENGTH.unpack_from(content)
    end = _LENGTH.size + length
    return Order(str(content[_LENGTH.size : end], "utf-8")), bytes(content[end:])


def write_answer(answer: Answer) -> list[Buffer]:
    """The parts of a frame."""
    return [_ANSWER.pack(answer.status), answer.body]


@readable("answer")
def read_answer(content: memoryview) -> Answer:
    """What `write_answer` wrote."""
    return Answer(_ANSWER.unpack_from(content)[0], bytes(content[_ANSWER.size :]))


def _object(content: Buffer, *names: str) -> Sequence[Any]:
    document = json.loads(bytes(content))
    return [document[name] for name in names]
