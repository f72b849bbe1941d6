"""The simulated device keeps its own time: exact, serial, and unmoved by late wake-ups."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.handler import Batch, Spec
from batchedmodel_model_server.handlers.simulated import Simulated


@dataclass
class Clock:
    """Virtual time; sleeping ends `late` after it should."""

    now: float = 100.0
    late: float = 0.0
    slept: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


def simulated(clock: Clock, **parameters: str) -> Simulated:
    handler = Simulated(clock.read, clock.sleep)
    handler.parameters = parameters
    handler.load(None, "simulated")
    return handler


def batch(lengths: list[int], handed_over: float) -> Batch:
    return Batch(
        arrays={"x": np.zeros((len(lengths), max(lengths)), np.int64)},
        sizes={"L": np.array(lengths)},
        rows=len(lengths),
        device="simulated",
        handed_over=handed_over,
    )


@pytest.mark.parametrize(
    ("parameters", "rule", "seconds"),
    [
        ({}, CostRule.ROWS, 0.0053),
        ({"tokenSeconds": "0.001"}, CostRule.PACKED, 0.0053 + 0.006),
        ({"fixedSeconds": "1", "rowSeconds": "2"}, CostRule.ROWS, 7),
    ],
    ids=["default", "packed", "other figures"],
)
def test_a_pass_takes_what_the_formula_says(
    parameters: dict[str, str], rule: CostRule, seconds: float
) -> None:
    clock = Clock()
    handler = simulated(clock, **parameters)
    handler.forward(batch([1, 2, 3], handed_over=clock.now))
    assert handler.cost_rule is rule
    assert clock.now - 100 == pytest.approx(seconds)


def test_late_wake_ups_do_not_add_up() -> None:
    clock = Clock(late=0.002)
    handler = simulated(clock, fixedSeconds="0.010", rowSeconds="0")
    for _ in range(50):
        handler.forward(batch([1], handed_over=100.0))
    assert clock.now == pytest.approx(100 + 50 * 0.010 + 0.002)


def test_a_device_that_was_idle_starts_when_work_is_handed_over() -> None:
    clock = Clock()
    handler = simulated(clock, fixedSeconds="0.010", rowSeconds="0")
    handler.forward(batch([1], handed_over=100.0))
    clock.now = 200.001
    handler.forward(batch([1], handed_over=200.0))
    assert clock.now == pytest.approx(200.010)


def test_a_pass_without_duration_does_not_sleep() -> None:
    clock = Clock()
    simulated(clock, fixedSeconds="0", rowSeconds="0").forward(batch([1], handed_over=100.0))
    assert clock.slept == []


def test_the_answer_is_the_input() -> None:
    given = batch([2, 3], handed_over=100.0)
    answer = simulated(Clock()).forward(given)
    assert answer["y"] is given.array("x")


def test_rows_may_be_of_another_type_and_of_one_size() -> None:
    handler = simulated(Clock(), datatype="FP32", elements="150528")
    assert handler.inputs == {"x": Spec("FP32", (150528,))}
    assert handler.outputs == {"y": Spec("FP32", (150528,))}


def test_the_answer_may_be_numbers_of_another_size() -> None:
    handler = simulated(Clock(), floats="384")
    assert handler.inputs["x"].datatype == "INT64"
    assert handler.outputs == {"y": Spec("FP32", (384,))}
    answer = handler.forward(batch([2, 3], handed_over=100.0))["y"]
    assert answer.shape == (2, 384)
    assert answer.dtype == np.float32
    assert len(set(answer[1].tolist())) == 384


def test_the_prediction_is_the_formula() -> None:
    handler = simulated(Clock(), tokenSeconds="0.001")
    assert handler.predicted_seconds(3, 4) == pytest.approx(0.005 + 0.0003 + 0.012)


def test_a_pass_takes_as_long_as_one_of_the_next_captured_size() -> None:
    handler = simulated(Clock(), capturedRows="4, 16")
    seconds = [handler.predicted_seconds(rows, 1) for rows in (1, 4, 5, 16, 17)]
    assert seconds == pytest.approx([0.0054, 0.0054, 0.0066, 0.0066, 0.0067])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fixedSeconds", "soon", "is not a number of seconds, 0 or more"),
        ("rowSeconds", "-1", "is not a number of seconds, 0 or more"),
        ("tokenSeconds", "inf", "is not a number of seconds, 0 or more"),
        ("tokenSeconds", "nan", "is not a number of seconds, 0 or more"),
        ("generates", "yes", "is neither true nor false"),
        ("datatype", "BYTES", "is not one of BOOL"),
        ("elements", "0", "is not a whole number from 1 to 1048576"),
        ("elements", "1048577", "is not a whole number from 1 to 1048576"),
        ("floats", "00000010000000", "is not a whole number from 1 to 1048576"),
        ("capturedRows", "4,,8", "is not a whole number from 1 to 1048576"),
        ("capturedRows", "8,4", "does not ascend"),
        ("floats", "many", "is not a whole number from 1 to 1048576"),
        ("generates", "1", "is neither true nor false"),
        ("stepSeconds", "0.02", "needs generates: true"),
        ("blocks", "7", "needs generates: true"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^spec.model.parameters.{name}: .*{message}"):
        simulated(Clock(), **{name: value})
