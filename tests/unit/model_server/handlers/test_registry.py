"""A handler's name in the manifest, and each way in which it can be wrong."""

import sys
from pathlib import Path

import pytest

from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.batching.examples import examples
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import forward
from batchedmodel_model_server.handlers.registry import make_handler
from batchedmodel_model_server.handlers.simulated import Simulated
from batchedmodel_model_server.lifecycle.loading import unload
from support.model_server_handlers import Echo, loaded

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
        (
            f"{HERE}:loaded",
            "loaded is not a subclass of batchedmodel_model_server.api.handler.Handler",
        ),
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
    [
        ("simulated", "fixedSeconds, rowSeconds, tokenSeconds, capturedRows, datatype"),
        (f"{HERE}:Echo", "none"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_known_ones(name: str, known: str) -> None:
    with pytest.raises(
        CannotLoad, match=f"^spec.model.parameters.speed: is not known .* known: {known}"
    ):
        make_handler(name, {"speed": "1"})


HANDLER = """
import dataclasses
from batchedmodel_model_server.api.handler import Handler, Spec

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
        ("handler.py:Beside", HANDLER, False, "run only with spec.model.trustRemoteCode: true"),
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


WITH_NET = """
from batchedmodel_model_server.api.handler import Handler, Spec
from .net import factor

class Beside(Handler):
    inputs = {"x": Spec("INT64", ("L",), max=9)}
    outputs = {"y": Spec("INT64", ("L",))}

    def device(self):
        return "host"

    def forward(self, batch):
        from .late import shift
        return {"y": batch.array("x") * factor + shift}
"""


def version_with_files(folder: Path, factor: int) -> Handler:
    """A handler whose file imports two others, one of them when it is asked first."""
    folder.mkdir()
    (folder / "handler.py").write_text(WITH_NET)
    (folder / "net.py").write_text(f"factor = {factor}")
    (folder / "late.py").write_text(f"shift = {factor}")
    return make_handler("handler.py:Beside", {}, folder, trust=True)


def test_two_versions_import_each_the_files_beside_it_until_they_are_unloaded(
    tmp_path: Path,
) -> None:
    versions = [version_with_files(tmp_path / str(number), number) for number in (2, 3)]
    answers = []
    for model in map(loaded, versions):
        [done] = forward(model, examples(model.declaration, rows=1, length=1), 0.0)
        answers.append(done.outputs["y"].array.item())
    for handler in versions:
        unload(handler)
    x = examples(model.declaration, rows=1, length=1).arrays["x"].item()
    assert answers == [x * 2 + 2, x * 3 + 3]
    assert not {type(handler).__module__ for handler in versions} & set(sys.modules)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("import net", "; net.py lies beside it: from . import net"),
        ("import netz", r"No module named 'netz' \(.*handler.py:1 in <module>\)$"),
    ],
)
def test_a_file_beside_it_that_is_imported_as_if_installed_is_told_how(
    tmp_path: Path, code: str, hint: str
) -> None:
    (tmp_path / "handler.py").write_text(code)
    (tmp_path / "net.py").touch()
    with pytest.raises(CannotLoad, match=hint):
        make_handler("handler.py:Beside", {}, tmp_path, trust=True)
