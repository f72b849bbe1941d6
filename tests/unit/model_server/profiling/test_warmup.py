"""The warm-up: a small and a large shape first, and the second pass is the sample."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchedmodel_contract.inference.description import TextInput
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.api.handler import Batch, Spec
from batchedmodel_model_server.batching.examples import examples
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.handlers.simulated import Simulated
from batchedmodel_model_server.profiling.shapes import shapes
from batchedmodel_model_server.profiling.warmup import WarmUp, lengths, slowness
from support.model_server_handlers import Clock, Echo, Giving, Timed, loaded
from support.warm_ups import complete, whole


def test_the_grid_begins_with_the_least_work() -> None:
    grid = shapes(32, (16, 256))
    assert grid[:3] == [(1, 16), (3, 16), (10, 16)]
    assert grid[-1] == (32, 256)
    assert {rows for rows, _ in grid} == {1, 3, 10, 32}
    assert shapes(1, (1,)) == [(1, 1)]


def test_lengths_reach_to_the_longest_item() -> None:
    model = loaded(Echo())
    assert lengths(model) == (16, 63, 252, 1000)
    model.handler.text = TextInput(name="text", tokens="x", max_tokens=64)
    assert lengths(model) == (16, 25, 40, 64)


def test_an_item_may_be_too_short_for_several_lengths() -> None:
    handler = Giving({}, {"y": Spec("FP32", ())}, {"x": Spec("INT64", ("L",), max=5)})
    assert lengths(loaded(handler)) == (5,)


@pytest.mark.parametrize(
    ("least", "longest", "expected"),
    [(3, 250, (16, 40, 100, 250)), (100, 800, (100, 200, 400, 800)), (80, 80, (80,))],
)
def test_no_length_is_below_the_least_that_the_model_takes(
    least: int, longest: int, expected: tuple[int, ...]
) -> None:
    inputs = {"x": Spec("INT64", ("L",), min=least, max=longest)}
    handler = Giving({}, {"y": Spec("FP32", ())}, inputs)
    assert lengths(loaded(handler)) == expected


def test_a_model_of_fixed_sizes_has_one_length() -> None:
    handler = Giving({}, {"y": Spec("FP32", ())}, {"x": Spec("INT64", (7,))})
    assert lengths(loaded(handler)) == (1,)


IMAGES = {"x": Spec("FP32", ("H", "W", 3), min=2, max=512)}


def test_an_image_is_as_long_as_it_has_pixels() -> None:
    model = loaded(Giving({}, {"y": Spec("FP32", ())}, IMAGES))
    assert lengths(model) == (4 * 4, 20 * 20, 101 * 101, 512 * 512)
    for length in lengths(model):
        side = int(length**0.5)
        batch = examples(model.declaration, rows=2, length=length)
        assert batch.arrays["x"].shape == (2, side, side, 3)
        assert list(batch.lengths) == [length] * 2


def test_of_several_inputs_the_longest_counts() -> None:
    inputs = {"x": Spec("INT64", ("L",), max=100), "y": Spec("INT64", ("M", "K"), max=20)}
    declaration = loaded(Giving({}, {"z": Spec("FP32", ())}, inputs)).declaration
    sizes = {"L": [50, 7], "M": [3, 4], "K": [5, 20]}
    assert declaration.lengths(sizes, 2) == [50, 80]
    assert declaration.length_of({"L": 50, "M": 4, "K": 20}) == 80
    assert declaration.sizes_of(30) == {"L": 5, "M": 5, "K": 5}


def test_the_second_pass_of_a_shape_is_its_sample() -> None:
    clock = Clock()
    handler = Timed(clock)
    profile = whole(loaded(handler), 4, MemoryCap(), clock.read)
    assert [(p.rows, p.length, p.seconds) for p in profile.points] == [
        (rows, length, rows * length) for rows in (1, 2, 3, 4) for length in (16, 63, 252, 1000)
    ]
    assert handler.seen[:2] == [(1, 16), (1, 16)]


def begun(handler: Timed, max_rows: int = 32) -> WarmUp:
    warm_up = WarmUp(loaded(handler), max_rows, MemoryCap(), handler.clock.read)
    warm_up.begin()
    return warm_up


def test_before_a_model_is_ready_a_small_and_a_large_shape_are_measured() -> None:
    """All sixteen took a model of 22 M parameters eight seconds of its start."""
    handler = Timed(Clock(), 2e-5)
    profile = begun(handler).profile()
    assert [(p.rows, p.length) for p in profile.points] == [(1, 16), (3, 1000), (32, 16)]
    assert profile.partial


def test_a_large_shape_of_a_slow_model_is_a_few_times_the_smallest() -> None:
    handler = Timed(Clock())
    assert [(p.rows, p.length) for p in begun(handler).profile().points] == [
        (1, 16), (1, 63), (3, 16),
    ]  # fmt: skip


def test_what_was_measured_first_is_not_measured_again() -> None:
    handler = Timed(Clock(), 1e-5)
    warm_up = begun(handler, 4)
    complete(warm_up)
    profile = warm_up.profile()
    assert not profile.partial
    assert len({(p.rows, p.length) for p in profile.points}) == len(profile.points) == 16


def test_a_pass_that_may_take_too_long_is_skipped() -> None:
    clock = Clock()
    handler = Timed(clock)
    whole(loaded(handler), 4, MemoryCap(), clock.read, longest_pass=70.0)
    assert set(handler.seen) == {(1, 16), (2, 16), (3, 16), (4, 16), (1, 63)}


def test_a_few_small_shapes_are_run_however_long_they_take() -> None:
    clock = Clock()
    model = loaded(Timed(clock))
    profile = whole(model, 16, MemoryCap(), clock.read, longest_pass=2.0)
    assert [(p.rows, p.length) for p in profile.points] == [(1, 16), (1, 63), (2, 16), (3, 16)]
    assert not profile.partial


def begun_at_once(model: LoadedModel) -> Profile:
    warm_up = WarmUp(model, 32, MemoryCap())
    warm_up.begin()
    return warm_up.profile()


def test_a_handler_that_knows_its_times_is_not_run() -> None:
    clock = Clock()
    handler = Simulated(clock.read, clock.sleep)
    handler.parameters = {}
    handler.load(None, "simulated")
    profile = begun_at_once(loaded(handler))
    seconds = {p.rows: p.seconds for p in profile.points}
    grid = [seconds[rows] for rows in (1, 3, 10, 32)]
    assert grid == pytest.approx([0.0051, 0.0053, 0.006, 0.0082])
    assert clock.now == 0
    assert not profile.partial


def test_a_model_that_fails_in_warm_up_cannot_be_served() -> None:
    model = loaded(Giving({"y": np.ones(7)}, {"y": Spec("FP32", ())}))
    with pytest.raises(CannotLoad, match="a batch of 1 x 16 failed in warm-up: output y"):
        WarmUp(model, 32, MemoryCap()).begin()


class Small(Echo):
    """Has memory for so many values."""

    holds = 0

    def forward(self, batch: Batch) -> Any:
        if batch.array("x").size > self.holds:
            raise MemoryError
        return super().forward(batch)


def small(holds: int) -> Small:
    handler = Small()
    handler.holds = holds
    return handler


def test_a_shape_that_does_not_fit_bounds_the_batches_and_the_model_is_served() -> None:
    cap = MemoryCap()
    profile = whole(loaded(small(1500)), 4, cap)
    fit = {(rows, length) for rows in (1, 2, 3, 4) for length in (16, 63, 252)} | {(1, 1000)}
    assert {(p.rows, p.length) for p in profile.points} == fit
    assert profile.max_cost == cap.cost == 1500


def test_a_length_of_which_not_even_one_fits_bounds_no_batch_of_others() -> None:
    profile = whole(loaded(small(600)), 2, MemoryCap())
    assert {p.length for p in profile.points} == {16, 63, 252}
    assert profile.max_cost is not None
    assert profile.max_cost >= 2 * 252


def test_a_model_of_which_not_one_item_fits_cannot_be_served() -> None:
    with pytest.raises(CannotLoad, match="not even one item fits: the device's memory does not"):
        whole(loaded(small(0)), 4, MemoryCap())


@pytest.mark.parametrize(("slower", "passes"), [(1.0, 2), (1.3, 2), (0.1, 2), (3.0, 1)])
def test_one_shape_tells_how_slow_a_machine_is(slower: float, passes: int) -> None:
    """Beside a busy process each of four passes took most of a second."""
    clock = Clock()
    profile = whole(loaded(Timed(clock)), 4, MemoryCap(), clock.read)
    points = [replace(point, seconds=point.seconds / slower) for point in profile.points]
    handler = Timed(clock)
    slow = slowness(loaded(handler), replace(profile, points=tuple(points)), clock.read)
    assert slow == pytest.approx(slower if passes == 2 else 3 * slower)
    assert len(handler.seen) == passes
