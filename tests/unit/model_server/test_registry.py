"""A handler's name in the manifest, and each way in which it can be wrong."""

from pathlib import Path

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


HANDLER = """
import dataclasses
from batchedmodel_model_server.handler import Handler, Spec

@dataclasses.dataclass
class Scale:
    by: int

class Beside(Handler):
    inputs = {"x": Spec("INT64", ("L",), max=9)}
    outputs = {"y": Spec("INT64", ("L",))}

    def forward(self, batch):
        return {"y": batch.array("x") * Scale(2).by}
"""


def test_a_handler_beside_the_weights_is_run_if_they_are_trusted(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    handler = make_handler("handler.py:Beside", {}, tmp_path, trust=True)
    assert handler.trusted
    assert handler.inputs["x"].max == 9


@pytest.mark.parametrize(
    ("name", "code", "trust", "message"),
    [
        ("handler.py:Beside", HANDLER, False, "run only with spec.model.trust: true"),
        ("other.py:Beside", HANDLER, True, "has no other.py"),
        ("handler.py:Absent", HANDLER, True, "has no Absent"),
        ("handler.py:Scale", HANDLER, True, "Scale is not a subclass of"),
        ("handler.py:Beside", "import nothing_known", True, "cannot be run: ModuleNotFoundError"),
        ("handler.py:Beside", "class", True, "cannot be run: SyntaxError"),
    ],
    ids=["not trusted", "no file", "no class", "no handler", "import fails", "no Python"],
)
def test_a_handler_beside_the_weights_that_cannot_be_made_says_why(
    tmp_path: Path, name: str, code: str, trust: bool, message: str
) -> None:
    (tmp_path / "handler.py").write_text(code)
    with pytest.raises(CannotLoad, match=f"^handler {name}: .*{message}"):
        make_handler(name, {}, tmp_path, trust=trust)


def test_a_handler_beside_weights_needs_them() -> None:
    with pytest.raises(CannotLoad, match="there is no spec.model.source to look for handler.py"):
        make_handler("handler.py:Beside", {}, None, trust=True)
