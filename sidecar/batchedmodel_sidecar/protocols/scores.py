"""Scores of classification and ranking: what they mean, and what both protocols have in common."""

import math
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.description import Activation
from batchedmodel_contract.inference.tensors import bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.protocols.json_bodies import flag
from batchedmodel_sidecar.protocols.protocol import Body, PublicProtocol

TRUNCATION: Final = frozenset({"truncate", "truncation_direction"})
"""TEI's fields about long texts."""
_KINDS: Final = {429: "Overloaded", 503: "Unhealthy"}


class ScoreProtocol(PublicProtocol):
    """A protocol whose errors are read by clients of TEI and of Cohere."""

    def error(self, error: CallError) -> Body:
        """TEI's `error` and `error_type` beside Cohere's `message`."""
        kind = _KINDS.get(error.status) or ("Validation" if error.status < 500 else "Backend")
        document = {"error": error.message, "error_type": kind, "message": error.message}
        return Body(data=orjson.dumps(document))


def probabilities(raw: list[float], activation: Activation) -> list[float]:
    """What the raw scores mean, each from 0 to 1."""
    if activation is Activation.SIGMOID:
        return [sigmoid(score) for score in raw]
    highest = max(raw)
    powers = [math.exp(score - highest) for score in raw]
    total = math.fsum(powers)
    return [power / total for power in powers]


def probability(highest: float, raw: list[float], activation: Activation) -> float:
    """Of the highest of the raw scores alone, what `probabilities` says of it."""
    if activation is Activation.SIGMOID:
        return sigmoid(highest)
    return 1.0 / math.fsum([math.exp(score - highest) for score in raw])


def sigmoid(score: float) -> float:
    """1 / (1 + e^-score), for scores of any size."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    power = math.exp(score)
    return power / (1 + power)


def raw_scores(answer: Answer, name: str) -> list[list[Any]]:
    """The raw scores of each row in one output, whole numbers as such.

    Raises `InvalidInput` when JSON has none.
    """
    index = [output.name for output in answer.outputs].index(name)
    datatype = answer.outputs[index].datatype
    return [bytes_to_values(value.data, datatype, name) for value in answer.column(index)]


def must_stay_whole(asked: dict[str, Any]) -> bool:
    """Whether long texts are to be refused and not cut; raises `InvalidInput`."""
    direction = asked.get("truncation_direction")
    if direction is not None and direction not in ("right", "Right"):
        raise InvalidInput("truncation_direction", "is not right: texts are cut there", direction)
    return not flag(asked, "truncate", default=True)
