"""Finds out, once a model is loaded, how items of different length may share a forward pass.

Packed if the handler can and its answers stay the same, else padded if they do, else not at all:
what would be a silently wrong answer becomes a rule of scheduling. A few made-up items are run
alone, where nothing can go wrong between items, and together. It finds group norms, stacked
convolutions, recurrences that run backwards and forgotten masks. Called before the warm-up.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_model_server.api.batch import Array
from batchedmodel_model_server.batching.declaration import Declaration, Sharing
from batchedmodel_model_server.batching.examples import SEED, unlike_examples
from batchedmodel_model_server.batching.items import collate, split
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, ForwardFailed
from batchedmodel_model_server.execution.forward import LoadedModel, forward

# Two of one length, for those are computed together; a long one reaches beyond attention windows.
_LENGTHS: Final = (11, 3, 40, 11, 160)
_TOGETHER: Final = ((0, 1, 2, 3), (1, 4))
"""Those of them that share a pass. The long one comes with one more only: beside a version that
serves, its batches wait for each of these passes."""
_FEW: Final = (0, 1, 2)
"""Run a second time, as each answer must be the same again."""
_TOLERANCES: Final = {"FP32": 1e-4, "FP16": 2e-2, "BF16": 1e-1}
"""Of the largest difference, as a share of the largest number in the answers of all items.

Measured in float32: 1e-7 to 1e-6 where nothing is wrong, from 4e-3 on where something is. The
halves have 3 and 2 decimal digits, of which some are lost from layer to layer.
"""
_FLIPPED: Final = {"FP32": 0.02, "FP16": 0.05, "BF16": 0.1}
"""Of integers, as a share of those compared, how many may be others.

An integer that is made of floats (the largest of several, one above a threshold) may flip where
the floats lie within their tolerance of each other, however right both are; how near they were is
not seen. Few do by rounding, while padding that is taken for content changes many.
"""
_ROUNDS: Final = 25
"""Of other short items, run where an integer differs: of few integers no share can be told."""
_EPSILONS: Final = {"FP32": 2.0**-23, "FP16": 2.0**-10, "BF16": 2.0**-7}
"""Machine epsilon. Numbers within a model are about 1 and are rounded by so much, so that answers
which differ by less than this are the same, however near to 0 all of them are."""
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
    """How items of different length may share a pass of this model.

    Raises `CannotLoad` for an unknown precision, and for answers that are not the same again.
    """
    declaration = model.declaration
    tolerance = _TOLERANCES.get(model.handler.precision)
    if tolerance is None:
        known = ", ".join(_TOLERANCES)
        raise CannotLoad(
            f"{type(model.handler).__name__}.precision: {model.handler.precision!r} is not one of "
            f"{known}"
        )
    if model.handler.predicted_seconds(1, 1) is not None:
        return Verdict(sharing=Sharing.PADDED, reason="nothing to try: the handler predicts itself")
    has_one_size = all(least == largest for least, largest in declaration.bounds.values())
    try:
        alone = _alone(model, _FEW if has_one_size else range(len(_LENGTHS)))
        if model.idempotent:
            again = _pairs(model, Sharing.PADDED, alone, [[one] for one in _FEW])
            _check_repeats(model, again, tolerance)
    except DeviceLost:
        raise
    except ForwardFailed as error:
        # The warm-up fails as well, and says so, unless only these made-up numbers do.
        if not has_one_size:
            reason = f"an item by itself could not be run: {error}"
            return Verdict(sharing=Sharing.APART, reason=reason)
    if has_one_size:
        return Verdict(sharing=Sharing.PADDED, reason="all items have one size")
    reasons = []
    compared = sum(answer is not None for answer in alone.values())
    if compared == 0:
        # Nothing speaks against sharing, and nothing for it.
        reason = "no made-up item had a finite answer by itself, so none could be compared"
        return Verdict(sharing=Sharing.APART, reason=reason)
    if compared < len(alone):
        reasons.append(f"{len(alone) - compared} of {len(alone)} items had no finite answer")
    for sharing in (Sharing.PACKED, Sharing.PADDED):
        if sharing is Sharing.PACKED and not declaration.packs:
            continue
        try:
            pairs = _pairs(model, sharing, alone)
            difference = _difference(pairs, _EPSILONS[model.handler.precision] / tolerance)
            flipped = _flipped(pairs) if difference <= tolerance else 0.0
            if flipped:
                flipped = _flipped([*pairs, *_more_pairs(model, sharing)])
        except DeviceLost:
            raise
        except ForwardFailed as error:
            reasons.append(f"{sharing.value}: {error}")
            continue
        said = f"{sharing.value} and single answers differ by {difference:.1e} of the largest"
        bound = _FLIPPED[model.handler.precision]
        if flipped:
            said = f"{said}, and {flipped:.1%} of the integers"
        if difference <= tolerance and flipped <= bound:
            return Verdict(sharing=sharing, reason="; ".join([*reasons, said]))
        above = f"{tolerance:.0e}" if difference > tolerance else f"{bound:.0%}"
        reasons.append(f"{said}, above {above} for {model.handler.precision}")
    return Verdict(sharing=Sharing.APART, reason="; ".join(reasons))


Answer = dict[str, Array]
"""An item's outputs by name."""
Answers = Mapping[int, Answer | None]
"""By item; None where a number of it is not finite."""
Pair = tuple[Answer, Answer | None]
"""An item's answer by itself, and its answer beside others."""


def _alone(
    model: LoadedModel, members: Sequence[int] = range(len(_LENGTHS)), seed: int = SEED
) -> Answers:
    """Of each of these items by itself."""
    return {index: _answers(model, Sharing.PADDED, (index,), seed)[index] for index in members}


def _pairs(
    model: LoadedModel,
    sharing: Sharing,
    alone: Answers,
    groups: Sequence[Sequence[int]] = _TOGETHER,
    seed: int = SEED,
) -> list[Pair]:
    pairs: list[Pair] = []
    for members in groups:
        together = _answers(model, sharing, members, seed)
        for index in members:
            one = alone[index]
            if one is not None:
                pairs.append((one, together[index]))
    return pairs


def _check_repeats(model: LoadedModel, pairs: Sequence[Pair], tolerance: float) -> None:
    """Raise `CannotLoad` for an output that is another one when an item is run again."""
    precision = model.handler.precision
    for name in model.declaration.outputs:
        only = [({name: one[name]}, other and {name: other[name]}) for one, other in pairs]
        floor, flips = _EPSILONS[precision] / tolerance, _FLIPPED[precision]
        if only and (_difference(only, floor) > tolerance or _flipped(only) > flips):
            raise CannotLoad(
                f"output {name} of one item differs between two runs: eval() may be missing, or "
                "the handler keeps a state. One that means to says idempotent = False"
            )


def _more_pairs(model: LoadedModel, sharing: Sharing) -> list[Pair]:
    short, pairs = _TOGETHER[0], list[Pair]()
    for seed in range(SEED + 1, SEED + 1 + _ROUNDS):
        pairs += _pairs(model, sharing, _alone(model, short, seed), (short,), seed)
    return pairs


def _answers(
    model: LoadedModel, sharing: Sharing, members: Collection[int], seed: int = SEED
) -> Answers:
    """Of these items, which share one pass."""
    declaration = _shared(model.declaration, sharing)
    examined = unlike_examples(declaration, _LENGTHS, seed).only(members)
    collated = collate(declaration, examined)
    passed = forward(replace(model, declaration=declaration), collated, 0.0)
    given, not_finite = split(declaration, passed, examined.count)
    found: list[Answer] = [{} for _ in range(examined.count)]
    for output in given:
        dtype = declaration.outputs[output.name].dtype
        for answer, shape, data in zip(found, output.shapes, output.items(), strict=True):
            answer[output.name] = np.frombuffer(data, dtype).reshape(shape)
    return {index: None if index in not_finite else found[index] for index in members}


def _shared(declaration: Declaration, sharing: Sharing) -> Declaration:
    rule = CostRule.PACKED if sharing is Sharing.PACKED else declaration.cost_rule
    return replace(declaration, sharing=sharing, cost_rule=rule)


def _difference(pairs: Sequence[Pair], floor: float) -> float:
    """The largest difference, as a share of the largest number that the output has in any item.

    Not of the item's own: a score near 0 is rounded as its neighbours far from 0 are. What is
    smaller than `floor` is measured by that. Infinite for other shapes; of integers `_flipped`
    judges.
    """
    both = [(one, other) for one, other in pairs if other is not None]
    if len(both) < len(pairs):
        return np.inf
    worst = 0.0
    for name, first in pairs[0][0].items():
        arrays = [(one[name], other[name]) for one, other in both]
        if any(one.shape != other.shape for one, other in arrays):
            return np.inf
        if first.dtype.kind == "f":
            scale = max(floor, *(float(np.abs(one).max(initial=0.0)) for one, _ in arrays))
            for one, other in arrays:
                away = float(np.abs(one.astype(np.float64) - other).max(initial=0.0))
                worst = max(worst, away / scale)
    return worst


def _flipped(pairs: Sequence[Pair]) -> float:
    """The share of integers that are others beside other items, in the output with the most."""
    shares = [0.0]
    for name, first in pairs[0][0].items():
        # An item without a finite answer beside others has flipped as a whole.
        flips = [
            one[name].size if other is None else int((one[name] != other[name]).sum())
            for one, other in pairs
        ]
        compared = sum(one[name].size for one, _ in pairs)
        if first.dtype.kind != "f" and compared:
            shares.append(sum(flips) / compared)
    return max(shares)
