"""Errors as a sidecar gets them."""

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, NotReady, UnknownModel
from batchedmodel_model_server.link.orders import failure

FAILED_BYTES = 64 * 1024
"""That the frame may have."""


class Finer(InvalidInput):
    """A kind of bad input that the table does not name."""

    def __init__(self) -> None:
        super().__init__("inputs", "are not to its taste")


class Moving(NotReady):
    """A kind of not being ready that the table does not name."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Finer(), 400),
        (CannotLoad("no such folder"), 400),
        (UnknownModel("version '9' is not known"), 404),
        (Moving("it moves"), 503),
        (DeviceLost("gone"), 503),
    ],
    ids=["input", "load", "version", "state", "device"],
)
def test_an_error_has_the_status_of_its_kind(error: Exception, status: int) -> None:
    failed = failure(error, "a batch")
    assert (failed.status, failed.message) == (status, str(error))
    assert failed.at_work == isinstance(error, DeviceLost)


def test_any_other_error_is_logged_and_says_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    failed = failure(ZeroDivisionError("a test\x00"), "a batch")
    assert (failed.status, failed.message) == (500, "ZeroDivisionError: a test\\x00")
    assert "a batch failed" in caplog.text


def test_what_an_error_says_fits_into_a_frame() -> None:
    for character in ("x", "\x00", "\U0001f600", "\U0010ffff"):
        failed = failure(CannotLoad(character * 100_000), "an order")
        assert len(failed.message.encode()) <= FAILED_BYTES
