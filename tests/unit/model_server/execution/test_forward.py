"""A forward pass is taken only for what the handler declared."""

from typing import Any

import numpy as np
import pytest

from batchedmodel_model_server.api.handler import Batch, Spec
from batchedmodel_model_server.batching.examples import examples
from batchedmodel_model_server.errors import ForwardFailed
from batchedmodel_model_server.execution.forward import forward
from batchedmodel_model_server.execution.runner import prepare
from support.model_server_handlers import Failing, Giving, batch_of, loaded

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
        (OWN, {"y": (np.ones((3, 4), int), [1, 2, 5])}, r"shape \[3, 4\], not \[3, 5\]"),
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
    [done] = forward(model, examples(model.declaration, rows=3, length=5), 0.0)
    assert done.outputs["y"].array.dtype == np.float32


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("INT64", 0.5, r"output y is 0.5 \(float64\) at its first place, .* declared int64"),
        ("INT64", 2.0, r"output y is 2.0 \(float64\)"),
        ("INT64", float("nan"), r"output y is nan \(float64\)"),
        ("INT32", float("inf"), r"output y is inf \(float64\)"),
        ("UINT8", -1, "output y holds -1, which is not within 0 to 255"),
        ("INT32", 2**40, f"output y holds {2**40}, which is not within -{2**31} to {2**31 - 1}"),
        ("INT64", np.uint64(2**63), f"output y holds {2**63}, which is not within"),
        ("BOOL", 2, "output y holds 2, which is not within 0 to 1"),
        ("BOOL", float("nan"), r"output y is nan \(float64\)"),
        ("FP32", 1j, r"output y is 1j \(complex128\)"),
        ("FP32", "1.5", "output y is 1.5 "),
    ],
)
def test_a_number_that_the_declared_datatype_cannot_hold_is_refused(
    datatype: str, value: Any, message: str
) -> None:
    model = loaded(Giving({"y": np.full((3, 2), value)}, {"y": Spec(datatype, (2,))}))
    with pytest.raises(ForwardFailed, match=message):
        forward(model, examples(model.declaration, rows=3, length=5), 0.0)


def test_a_size_that_is_no_integer_is_refused() -> None:
    model = loaded(Giving({"y": (np.ones((3, 4), int), [1.0, 2.0, float("nan")])}, OWN))
    with pytest.raises(ForwardFailed, match="output y: the T of a row is 1.0"):
        forward(model, examples(model.declaration, rows=3, length=5), 0.0)


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT8", "BOOL"])
@pytest.mark.parametrize("given_", [np.ones((3, 2), np.uint8), np.ones((3, 2), np.bool_)])
def test_small_integers_fit_every_datatype(datatype: str, given_: Any) -> None:
    model = loaded(Giving({"y": given_}, {"y": Spec(datatype, (2,))}))
    [done] = forward(model, examples(model.declaration, rows=3, length=5), 0.0)
    assert done.outputs["y"].array.tolist() == [[1, 1]] * 3


class Reusing(Giving):
    """Writes every answer to the same memory, of numpy or torch."""

    def forward(self, batch: Batch) -> Any:
        """Fill the buffer with the first number."""
        self._given[:] = int(batch.array("x")[0, 0])
        return {"y": self._given}


def test_an_answer_stays_what_it_was_when_the_handler_reuses_its_memory() -> None:
    for buffer in (np.zeros((1, 2), np.float32), torch_zeros((1, 2))):
        model = loaded(Reusing(buffer, VECTOR))
        batches = [prepare(model, batch_of(x=[np.array([number])])).collated for number in (7, 8)]
        given = [forward(model, one, 0.0) for one in batches if one is not None]
        assert [one.outputs["y"].array.tolist() for [one] in given] == [[[7, 7]], [[8, 8]]]


def torch_zeros(shape: tuple[int, ...]) -> Any:
    """A tensor on the host."""
    return pytest.importorskip("torch").zeros(shape)


def test_an_answer_may_be_padded_further_than_its_input() -> None:
    model = loaded(Giving({"y": np.ones((3, 8))}, TOKENS))
    [done] = forward(model, examples(model.declaration, rows=3, length=5), 0.0)
    assert done.outputs["y"].array.shape == (3, 8)


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
