"""Finds out, once a model is loaded, how items of different length may share a forward pass.

Packed if the handler can and its answers stay the same, else padded if they do, else not at all:
what would be a silently wrong answer becomes a rule of scheduling. A few made-up items are run
alone, where nothing can go wrong between items, and once together; nothing is concluded from the
name of a model. Group norms, stacked convolutions, recurrences that run backwards and forgotten
masks are what it finds. Called on the compute thread, before the warm-up.
"""

import logging
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from batchedmodel_contract.description import CostRule
from batchedmodel_model_server.batch import Array
from batchedmodel_model_server.collate import collate, split
from batchedmodel_model_server.declaration import Declaration, Sharing
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, ForwardFailed
from batchedmodel_model_server.examples import unlike_examples
from batchedmodel_model_server.forward import LoadedModel, forward
from batchedmodel_model_server.validation import Examined

# Two of one length, for those are computed together; a long one reaches beyond attention windows.
_LENGTHS: Final = (11, 3, 40, 11, 160)
_TOLERANCES: Final = {"FP32": 1e-4, "FP16": 2e-2, "BF16": 1e-1}
"""Of the largest difference, as a share of the largest number in the answer.

Measured in float32: 1e-7 to 1e-6 where nothing is wrong, from 4e-3 on where something is. The
halves have 3 and 2 decimal digits, of which some are lost from layer to layer.
"""
_SMALLEST: Final = float(np.finfo(np.float32).tiny)  # an answer of zeros must not divide by 0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How items share a pass, and why."""

    sharing: Sharing
    reason: str


def with_sharing(model: LoadedModel, found: Verdict | None = None) -> LoadedModel:
    """The model with the sharing that suits it, as was `found` earlier or is tried now.

    Raises `CannotLoad` for an unknown precision, and `DeviceLost`.
    """
    found = verdict(model) if found is None else found
    level = logging.WARNING if found.sharing is Sharing.APART else logging.INFO
    _log.log(level, "items share a forward pass: %s; %s", found.sharing.value, found.reason)
    return replace(model, declaration=_shared(model.declaration, found.sharing))


def verdict(model: LoadedModel) -> Verdict:
    """How items of different length may share a pass of this model."""
    declaration = model.declaration
    tolerance = _TOLERANCES.get(model.handler.precision)
    if tolerance is None:
        known = ", ".join(_TOLERANCES)
        raise CannotLoad(
            f"{type(model.handler).__name__}.precision: {model.handler.precision!r} is not one of "
            f"{known}"
        )
    if all(least == largest for least, largest in declaration.bounds.values()):
        return Verdict(sharing=Sharing.PADDED, reason="all items have one size")
    if model.handler.predicted_seconds(1, 1) is not None:
        return Verdict(sharing=Sharing.PADDED, reason="nothing to try: the handler predicts itself")
    try:
        alone = _alone(model)
    except DeviceLost:
        raise
    except ForwardFailed as error:
        # The warm-up will fail as well, and say so, unless it is the made-up numbers.
        return Verdict(sharing=Sharing.APART, reason=f"an item by itself could not be run: {error}")
    reasons = []
    for sharing in (Sharing.PACKED, Sharing.PADDED):
        if sharing is Sharing.PACKED and not declaration.packs:
            continue
        try:
            difference = _difference(alone, _together(model, sharing))
        except DeviceLost:
            raise
        except ForwardFailed as error:
            reasons.append(f"{sharing.value}: {error}")
            continue
        said = f"{sharing.value} and single answers differ by {difference:.1e} of the largest"
        if difference <= tolerance:
            return Verdict(sharing=sharing, reason="; ".join([*reasons, said]))
        reasons.append(f"{said}, above {tolerance:.0e} for {model.handler.precision}")
    return Verdict(sharing=Sharing.APART, reason="; ".join(reasons))


Answers = list[dict[str, Array]]
"""For each item its outputs by name."""


def _alone(model: LoadedModel) -> Answers:
    answers: Answers = []
    examined = unlike_examples(model.declaration, _LENGTHS)
    for index in range(examined.count):
        others = {other: "not in this pass" for other in range(examined.count) if other != index}
        answers.append(_answers(model, Sharing.PADDED, replace(examined, faults=others))[index])
    return answers


def _together(model: LoadedModel, sharing: Sharing) -> Answers:
    return _answers(model, sharing, unlike_examples(model.declaration, _LENGTHS))


def _answers(model: LoadedModel, sharing: Sharing, examined: Examined) -> Answers:
    declaration = _shared(model.declaration, sharing)
    collated = collate(declaration, examined)
    outputs = forward(replace(model, declaration=declaration), collated, 0.0)
    given, _ = split(declaration, outputs, collated.sizes, collated.items, examined.count)
    answers: Answers = [{} for _ in range(examined.count)]
    for output in given:
        dtype = declaration.outputs[output.name].dtype
        for answer, shape, data in zip(answers, output.shapes, output.items(), strict=True):
            answer[output.name] = np.frombuffer(data, dtype).reshape(shape)
    return answers


def _shared(declaration: Declaration, sharing: Sharing) -> Declaration:
    rule = CostRule.PACKED if sharing is Sharing.PACKED else declaration.cost_rule
    return replace(declaration, sharing=sharing, cost_rule=rule)


def _difference(alone: Answers, together: Answers) -> float:
    return max(
        _of_arrays(one[name], other[name])
        for one, other in zip(alone, together, strict=True)
        for name in one
    )


def _of_arrays(one: Array, other: Array) -> float:
    """The largest difference as a share of the largest number; infinite for other shapes."""
    if one.shape != other.shape:
        return np.inf
    if one.size == 0:
        return 0.0
    if one.dtype.kind != "f":
        return 0.0 if np.array_equal(one, other) else np.inf
    largest = max(float(np.abs(one).max()), _SMALLEST)
    return float(np.abs(one.astype(np.float64) - other).max()) / largest
