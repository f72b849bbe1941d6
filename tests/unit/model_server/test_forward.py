"""A forward pass is taken only for what the handler declared."""

from typing import Any

import numpy as np
import pytest

from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.examples import examples
from batchedmodel_model_server.forward import forward
from batchedmodel_model_server.handler import Spec
from support.model_server_handlers import Failing, Giving, loaded

VECTOR = {"y": Spec("FP32", (2,))}
TOKENS = {"y": Spec("FP32", ("L",))}
OWN = {"y": Spec("INT64", ("T",))}


@pytest.mark.parametrize(
    ("outputs", "given_", "message"),
    [
        (VECTOR, None, "the model answered NoneType, not y"),
        (VECTOR, {"z": 1}, "the model answered z, not y"),
        (VECTOR, {"y": np.ones((2, 2))}, r"shape \[2, 2\], not \[3, 2\]"),
        (VECTOR, {"y": np.ones(3)}, r"shape \[3\], not \[3, 2\]"),
        (VECTOR, {"y": [[1, 2], [3], [4]]}, "the model failed: ValueError"),
        (TOKENS, {"y": np.ones((3, 4))}, r"shape \[3, 4\], not \[3, 5\]"),
        (OWN, {"y": np.ones((3, 4))}, "is not a pair"),
        (OWN, {"y": (np.ones((3, 4)), [1, 2])}, "one T for each row"),
        (OWN, {"y": (np.ones((3, 4)), [1, 2, 5])}, r"shape \[3, 4\], not \[3, 5\]"),
    ],
    ids=[
        "nothing", "other name", "lost row", "lost dimension", "no tensor", "cut tokens",
        "no sizes", "sizes lost a row", "sizes beyond the tensor",
    ],
)  # fmt: skip
def test_an_answer_that_was_not_declared_is_refused(
    outputs: dict[str, Spec], given_: Any, message: str
) -> None:
    model = loaded(Giving(given_, outputs))
    with pytest.raises(ForwardFailed, match=message):
        forward(model, examples(model.declaration, rows=3, length=5), 0.0)


def test_an_answer_comes_in_the_declared_datatype() -> None:
    model = loaded(Giving({"y": np.ones((3, 2), np.float64)}, VECTOR))
    outputs = forward(model, examples(model.declaration, rows=3, length=5), 0.0)
    assert outputs["y"].array.dtype == np.float32


def test_an_answer_may_be_padded_further_than_its_input() -> None:
    model = loaded(Giving({"y": np.ones((3, 8))}, TOKENS))
    outputs = forward(model, examples(model.declaration, rows=3, length=5), 0.0)
    assert outputs["y"].array.shape == (3, 8)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, StopIteration])
def test_whatever_a_handler_raises_is_the_batches_failure(error: type[BaseException]) -> None:
    class Raising(Giving):
        def forward(self, batch: object) -> Any:
            raise error

    model = loaded(Raising({}, VECTOR))
    with pytest.raises(ForwardFailed, match=error.__name__):
        forward(model, examples(model.declaration, rows=1, length=1), 0.0)


def test_a_handler_with_a_check_of_its_own_is_noticed() -> None:
    assert loaded(Failing()).declaration.checks_items
    assert not loaded(Giving({}, VECTOR)).declaration.checks_items
