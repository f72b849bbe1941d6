"""How items may share a forward pass is tried and not believed."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_model_server.api.batch import Array, Batch
from batchedmodel_model_server.api.handler import Spec
from batchedmodel_model_server.batching.declaration import Sharing, describe
from batchedmodel_model_server.batching.items import collate, examine, split
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import LoadedModel, forward
from batchedmodel_model_server.handlers.simulated import Simulated
from batchedmodel_model_server.profiling.self_test import verdict, with_sharing
from support.model_server_handlers import Giving, OnHost, arrays_of, batch_of, loaded


class Means(OnHost):
    """The mean of each item, its parts counted from the item's start, and the item itself."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=200)}
    outputs: Mapping[str, Spec] = {"mean": Spec("FP32", ()), "same": Spec("FP32", ("L",))}

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        mask = np.arange(batch.lengths.max()) < batch.lengths[:, None]
        x = batch.array("x")
        return {"mean": (x * mask).sum(1) / batch.lengths, "same": x}


class Packing(Means):
    """Adds up within each item of a packed row."""

    packs = True

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        row = batch.packed()
        if row is None:
            return super().forward(batch)
        x = self.row(batch)
        return {"mean": np.add.reduceat(x, row.ends - row.lengths) / row.lengths, "same": x}

    def row(self, batch: Batch) -> Array:
        packed = batch.packed()
        assert packed is not None
        return packed.array("x")


class PackingBadly(Packing):
    """Lets items see their neighbours."""

    def row(self, batch: Batch) -> Array:
        return np.roll(super().row(batch), 1)


class PackingNever(Packing):
    """Says that it packs and cannot."""

    def row(self, batch: Batch) -> Array:
        raise NotImplementedError("a bias of its own")


class Maskless(Means):
    """Takes the padding for a part of the item."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        x = batch.array("x")
        return {"mean": x.mean(1), "same": x}


class MasklessPackingBadly(PackingBadly):
    """Wrong either way."""

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        if batch.packed() is None:
            return Maskless.forward(self, batch)  # type: ignore[arg-type]
        return super().forward(batch)


@pytest.mark.parametrize(
    ("handler", "sharing", "reason"),
    [
        (Packing(), Sharing.PACKED, "packed and single answers differ by"),
        (Means(), Sharing.PADDED, "padded and single answers differ by"),
        (PackingBadly(), Sharing.PADDED, "packed and single answers differ by .* above 1e-04"),
        (PackingNever(), Sharing.PADDED, "NotImplementedError: a bias of its own"),
        (Maskless(), Sharing.APART, "padded and single answers differ by .* above 1e-04"),
        (MasklessPackingBadly(), Sharing.APART, "packed .*; padded"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, OnHost) else None,
)
def test_items_share_a_pass_in_the_cheapest_way_that_changes_no_answer(
    handler: OnHost, sharing: Sharing, reason: str
) -> None:
    found = verdict(loaded(handler))
    assert found.sharing is sharing
    assert re.search(reason, found.reason), found.reason


def answers(model: LoadedModel, items: list[Array]) -> list[list[Array]]:
    examined = examine(model.declaration, batch_of(x=items))
    collated = collate(model.declaration, examined)
    given, faults = split(model.declaration, forward(model, collated, 0.0), examined.count)
    assert not faults
    return [arrays_of(output) for output in given]


@pytest.mark.parametrize(
    "handler", [Packing(), Means(), Maskless()], ids=lambda h: type(h).__name__
)
def test_a_mixed_batch_is_answered_as_its_items_alone(handler: OnHost) -> None:
    model = with_sharing(loaded(handler))
    items = [np.arange(size, dtype="f4") + size for size in (5, 2, 9, 2, 1, 5)]
    means, same = answers(model, items)
    assert [mean.item() for mean in means] == pytest.approx([item.mean() for item in items])
    assert all(np.array_equal(*pair) for pair in zip(items, same, strict=True))


@pytest.mark.parametrize(
    ("handler", "rule", "apart"),
    [
        (Packing(), CostRule.PACKED, False),
        (Means(), CostRule.PADDED, False),
        (Maskless(), CostRule.PADDED, True),
    ],
    ids=["packed", "padded", "apart"],
)
def test_the_scheduler_is_told(handler: OnHost, rule: CostRule, apart: bool) -> None:
    model = with_sharing(loaded(handler))
    description = describe("m", handler, model.declaration)
    assert (description.cost_rule, description.equal_lengths) == (rule, apart)


def test_tokens_given_to_the_device_follow_the_sharing() -> None:
    given = {
        type(handler): with_sharing(loaded(handler)).declaration.padded_tokens(10, 3, 6)
        for handler in (Packing(), Means(), Maskless())
    }
    assert given == {Packing: 10, Means: 18, Maskless: 10}


def test_half_precision_may_differ_more() -> None:
    class Coarse(Packing):
        precision = "BF16"

        def row(self, batch: Batch) -> Array:
            return super().row(batch) * np.float32(1.01)

    assert verdict(loaded(Coarse())).sharing is Sharing.PACKED
    Coarse.precision = "FP32"
    assert verdict(loaded(Coarse())).sharing is Sharing.PADDED


def test_an_unknown_precision_is_refused() -> None:
    class Odd(Means):
        precision = "FP8"

    with pytest.raises(CannotLoad, match=r"Odd.precision: 'FP8' is not one of FP32, FP16, BF16"):
        with_sharing(loaded(Odd()))


def test_a_handler_that_fails_on_made_up_items_gets_no_mixed_batches() -> None:
    found = verdict(loaded(Giving({"y": 7}, {"y": Spec("FP32", ())})))
    assert found.sharing is Sharing.APART
    assert "could not be run: output y has the shape" in found.reason


@pytest.mark.parametrize(("least", "largest"), [(200, 1000), (1, 2), (30, 31), (5, 12)])
def test_padding_is_tried_within_whatever_lengths_are_allowed(least: int, largest: int) -> None:
    class Narrow(Maskless):
        inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=largest, min=least)}

        def forward(self, batch: Batch) -> Mapping[str, Any]:
            assert all(least <= length <= largest for length in batch.lengths)
            return super().forward(batch)

    found = verdict(loaded(Narrow()))
    assert found.sharing is Sharing.APART
    assert found.reason.startswith("padded and single answers differ")


def test_items_of_one_size_need_no_trial() -> None:
    fixed = Giving({}, {"y": Spec("FP32", ())}, {"x": Spec("FP32", (3,))})
    single = Giving({}, {"y": Spec("FP32", ())}, {"x": Spec("FP32", ("L",), max=1)})
    for handler in (fixed, single):
        assert verdict(loaded(handler)).reason == "all items have one size"


def test_a_simulated_device_is_not_run() -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("it was run")

    handler = Simulated(sleep=sleep)
    handler.parameters = {"tokenSeconds": "1"}
    handler.load(None, "simulated")
    model = with_sharing(loaded(handler))
    assert model.declaration.sharing is Sharing.PADDED
    assert model.declaration.cost_rule is CostRule.PACKED


class Scores(Packing):
    """A score for each length, off by so much in a packed row."""

    outputs: Mapping[str, Spec] = {"score": Spec("FP32", ())}

    def __init__(self, scores: list[float], off: float, precision: str = "BF16") -> None:
        self.precision = precision
        self._scores = dict(zip((11, 3, 40, 160), scores, strict=True))
        self._off = off

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        off = 0.0 if batch.packed() is None else self._off
        scores = [self._scores[length] + off for length in batch.lengths.tolist()]
        return {"score": np.array(scores, dtype="f4")}


@pytest.mark.parametrize(
    ("scores", "off", "precision", "sharing"),
    [
        ([0.8, 0.001, -0.5, 0.3], 0.02, "BF16", Sharing.PACKED),
        ([0.8, 0.0, -0.5, 0.3], 0.2, "BF16", Sharing.PADDED),
        ([0.01, 0.001, -0.002, 0.0], 0.005, "BF16", Sharing.PACKED),
        ([0.01, 0.001, -0.002, 0.0], 0.02, "BF16", Sharing.PADDED),
        ([0.0] * 4, 1e-8, "FP32", Sharing.PACKED),
        ([0.01, 0.001, -0.002, 0.0], 1e-5, "FP32", Sharing.PADDED),
    ],
)
def test_an_answer_near_zero_is_judged_by_what_the_model_answers_otherwise(
    scores: list[float], off: float, precision: str, sharing: Sharing
) -> None:
    assert verdict(loaded(Scores(scores, off, precision))).sharing is sharing


def test_a_model_without_a_finite_answer_shares_nothing_and_says_so() -> None:
    found = verdict(loaded(Scores([math.nan] * 4, 0.0)))
    assert found.sharing is Sharing.APART
    assert "no made-up item had a finite answer" in found.reason


def test_items_without_a_finite_answer_are_left_out_and_counted() -> None:
    found = verdict(loaded(Scores([math.inf, 0.5, 0.5, 0.5], 0.0)))
    assert found.sharing is Sharing.PACKED
    assert found.reason.startswith("2 of 5 items had no finite answer; packed")


def test_an_answer_that_is_finite_by_itself_only_is_a_difference() -> None:
    found = verdict(loaded(Scores([0.5] * 4, math.nan)))
    assert found.sharing is Sharing.PADDED
    assert "packed and single answers differ by inf" in found.reason


class Labels(Means):
    """Says of each item whether its mean is above a bound, as one integer."""

    outputs: Mapping[str, Spec] = {"label": Spec("INT64", ())}
    wrong_every = 0
    """So many answers beside others are one that is wrong by rounding; 0: none."""

    def __init__(self) -> None:
        self.answered = 0

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        label = (super().forward(batch)["mean"] > 0).astype(np.int64)
        if batch.rows > 1 and self.wrong_every:
            self.answered += batch.rows
            if self.answered % self.wrong_every < batch.rows:
                label[0] = 1 - label[0]
        return {"label": label}


@pytest.mark.parametrize(
    ("wrong_every", "sharing", "reason"),
    [
        (0, Sharing.PADDED, "differ by 0.0e"),
        (104, Sharing.PADDED, "of the integers"),
        (12, Sharing.APART, "of the integers, above 2% for FP32"),
    ],
)
def test_a_label_that_flips_once_in_many_items_is_rounding_and_one_in_few_is_not(
    wrong_every: int, sharing: Sharing, reason: str
) -> None:
    handler = Labels()
    handler.wrong_every = wrong_every
    # The first label flips at once: what the first few items show decides nothing.
    handler.answered = wrong_every - 2 if wrong_every else 0
    found = verdict(loaded(handler))
    assert found.sharing is sharing, found.reason
    assert reason in found.reason


class Dropping(Means):
    """Draws anew which numbers it leaves out, as a model does without eval()."""

    numbers = np.random.default_rng(3)

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        answers = super().forward(batch)
        kept = self.numbers.random(answers["mean"].shape) > 0.5
        return {**answers, "mean": np.where(kept, answers["mean"], 0.0)}


class DroppingOfOneSize(OnHost):
    """The same, of items that all have one size."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", (4,))}
    outputs: Mapping[str, Spec] = {"score": Spec("FP32", ())}
    numbers = np.random.default_rng(3)

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        return {"score": batch.array("x").sum(1) + self.numbers.random(batch.rows)}


class Counting(Means):
    """Answers the number of the pass beside the mean: it keeps a state."""

    outputs: Mapping[str, Spec] = {**Means.outputs, "label": Spec("INT64", ())}
    passes = 0

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        self.passes += 1
        return {**super().forward(batch), "label": np.full(batch.rows, self.passes)}


class Flipping(Means):
    """Of a thousand integers one is another one in each pass, as a device's rounding has it."""

    outputs: Mapping[str, Spec] = {**Means.outputs, "label": Spec("INT64", (1000,))}
    passes = 0

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        self.passes += 1
        labels = np.zeros((batch.rows, 1000), np.int64)
        labels[:, 0] = self.passes
        return {**super().forward(batch), "label": labels}


def test_a_few_integers_that_flip_between_two_runs_are_rounding() -> None:
    """A mask of classes was refused for one element whose two best scores were next to equal."""
    assert verdict(loaded(Flipping())).sharing is Sharing.PADDED


@pytest.mark.parametrize(
    ("handler", "output"),
    [(Dropping, "mean"), (DroppingOfOneSize, "score"), (Counting, "label")],
)
def test_a_handler_that_answers_an_item_otherwise_when_it_runs_again_is_refused_by_the_output(
    handler: type[OnHost], output: str
) -> None:
    """Such a model was READY, batched by equal length, and each answer was another one."""
    with pytest.raises(CannotLoad, match=f"output {output} of one item differs between two runs"):
        verdict(loaded(handler()))


def test_a_handler_that_means_to_answer_otherwise_says_so() -> None:
    model = replace(loaded(DroppingOfOneSize()), idempotent=False)
    assert verdict(model).sharing is Sharing.PADDED
