"""A handler's name in the manifest, and each way in which it can be wrong."""

import pytest

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.simulated import Simulated
from batchedmodel_model_server.registry import make_handler
from support.model_server_handlers import Echo

HERE = "support.model_server_handlers"


def test_our_handlers_have_short_names() -> None:
    handler = make_handler("simulated", {"fixedSeconds": "1"})
    assert isinstance(handler, Simulated)
    assert handler.parameters == {"fixedSeconds": "1"}


def test_a_class_of_ones_own_is_imported() -> None:
    assert isinstance(make_handler(f"{HERE}:Echo", {}), Echo)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hg", "handler hg is not hf, simulated or package.module:Class"),
        ("no.such:Class", "no.such cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Absent", f"{HERE} has no Absent"),
        (f"{HERE}:loaded", "loaded is not a subclass of batchedmodel_model_server.handler.Handler"),
        (f"{HERE}:Path", "Path is not a subclass of"),
        (f"{HERE}:NoForward", "NoForward has no forward method"),
        (f"{HERE}:Unmakeable", "cannot be made: TypeError"),
    ],
)
def test_a_handler_that_cannot_be_made_says_why(name: str, message: str) -> None:
    with pytest.raises(CannotLoad, match=message):
        make_handler(name, {})


@pytest.mark.parametrize(
    ("name", "known"),
    [("simulated", "fixedSeconds, rowSeconds, tokenSeconds, padded"), (f"{HERE}:Echo", "none")],
)
def test_an_unknown_parameter_is_refused_with_the_known_ones(name: str, known: str) -> None:
    with pytest.raises(
        CannotLoad, match=f"^spec.model.parameters.speed: is not known .* known: {known}"
    ):
        make_handler(name, {"speed": "1"})
