"""A handler of one's own can be wrong in many ways, and each is told in words that lead to it."""

import sys
from pathlib import Path

import pytest

from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.lifecycle.loading import load

WRONG = "support.wrong_handlers"


def refusal(handler: str, **parameters: str) -> str:
    """Why the server cannot load it."""
    settings = ModelServerSettings(
        model_name="m",
        model_socket="unused",
        cache_folder="unused",
        handler=handler,
        parameters=tuple(parameters.items()),
    )
    with pytest.raises(CannotLoad) as caught:
        load(settings, None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AsyncForward", "AsyncForward.forward is async; methods of handlers run on a thread"),
        ("AsyncLoad", "AsyncLoad.load is async"),
        ("NoMethod", "NoMethod.check is not a method"),
        ("OneName", "OneName.parameter_names is not a tuple of names"),
        ("OneLibrary", "OneLibrary.libraries is not a tuple of names"),
        ("AbsentLibrary", "failed to load: ModuleNotFoundError: No module named 'no_such_library'"),
        ("OddDevice", "device gave PosixPath('cuda'), not a name such as 'cuda'"),
        ("ArgumentlessLoad", "failed to load: TypeError: ArgumentlessLoad.load() takes 1 positio"),
        ("NoDeclaration", "NoDeclaration declares no inputs"),
        ("OddCostRule", "OddCostRule.cost_rule: 'Packed' is no CostRule.PADDED, CostRule.PACKED"),
        ("NoTokenizer", "NoTokenizer.text needs NoTokenizer.tokenizer, the bytes of a tokeni"),
        ("TokenizerAsText", "the bytes of a tokenizer.json; it is a str"),
        ("OtherTokens", 'OtherTokens.text: "ids" names an input that the model does not have'),
        ("RealTokens", 'RealTokens.text: "x" names an input that is not INT64 of one lettered'),
        ("LongTexts", "LongTexts.text: 1001 cuts texts to more tokens than x takes, 1000"),
        ("OtherEmbedding", 'OtherEmbedding.embedding: "vector" names an output that the model do'),
        ("ScalarEmbedding", "ScalarEmbedding.embedding: [] names an output that is one number"),
        ("LongCut", "LongCut.shortest_embedding: 3 is not from 1 to 2"),
        ("CutOfNothing", "CutOfNothing.shortest_embedding: 3 is said of a model without embeddin"),
        ("ThreeLabels", "ThreeLabels.classification: [2] is not one score for each of its 3 labe"),
        ("VectorRanking", "VectorRanking.ranking: [2] is not one score for each pair"),
    ],
)
def test_a_class_that_is_wrong_is_told_how(name: str, message: str) -> None:
    assert message in refusal(f"{WRONG}:{name}")


MODULES = {
    "raises": ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    "lacks": ("import xgboosted", "ModuleNotFoundError: No module named 'xgboosted'"),
    "garbled": ("class", "cannot be imported: SyntaxError: "),
    "leaves": ("import sys; sys.exit(4)", "cannot be imported: SystemExit: 4"),
    "lowercase": ("anomaly = 1", "has no Anomaly"),
    "function": (
        "def Anomaly(): ...",
        "Anomaly is not a subclass of batchedmodel_model_server.api.ha",
    ),
    "stranger": (
        "class Anomaly: ...",
        "Anomaly is not a subclass of batchedmodel_model_server.api.ha",
    ),
    "forwardless": (
        "from batchedmodel_model_server.api.handler import Handler\nclass Anomaly(Handler): ...",
        "Anomaly has no forward method",
    ),
    "contradictory": (
        "from batchedmodel_model_server.api.handler import Spec\nx = Spec('FP32', ('L'), max=3)",
        "cannot be imported: ValueError: shape 'L' is not a tuple; of one size it is ('L',)",
    ),
    "fractional": (
        "from batchedmodel_model_server.api.handler import Spec\nx = Spec('FP32', (2.0,))",
        "cannot be imported: ValueError: shape (2.0,): 2.0 is neither a letter nor above 0",
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_is_wrong_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, message = MODULES[name]
    package = tmp_path / f"team_{name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "serving.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    handler = f"team_{name}.serving:Anomaly"
    try:
        told = refusal(handler)
    finally:
        for module in [module for module in sys.modules if module.startswith(package.name)]:
            del sys.modules[module]
    assert told.startswith(f"handler {handler}: ")
    assert message in told


def test_a_package_that_is_not_installed_is_told_by_its_name() -> None:
    told = refusal("team.serving:Anomaly")
    assert told == (
        "handler team.serving:Anomaly: team.serving cannot be imported: "
        "ModuleNotFoundError: No module named 'team'"
    )


def test_a_parameter_that_it_does_not_take_is_named_with_those_that_it_does() -> None:
    told = refusal("support.model_server_handlers:Echo", speed="3")
    assert told.startswith("spec.model.parameters.speed: is not known to handler support.")


OF_ONES_OWN = """
from batchedmodel_model_server.api.handler import Handler, Spec
from .net import build

class Anomaly(Handler):
    inputs = {"x": Spec("FP32", (4,))}
    outputs = {"y": Spec("FP32", ())}

    def device(self):
        return "host"

    def load(self, path, device):
        self.net = build({})

    def forward(self, batch):
        return {"y": batch.array("x").sum(1)}
"""


def own_handler(folder: Path, net: str) -> str:
    """Why a handler's file, beside which this one lies, cannot be loaded."""
    (folder / "handler.py").write_text(OF_ONES_OWN)
    (folder / "net.py").write_text(net)
    settings = ModelServerSettings(
        model_name="m",
        model_socket="unused",
        cache_folder="unused",
        handler="handler.py:Anomaly",
        trust=True,
    )
    with pytest.raises(CannotLoad) as caught:
        load(settings, Source(path=str(folder)))
    return str(caught.value)


def test_what_load_raises_is_told_with_the_places_in_the_authors_files(tmp_path: Path) -> None:
    """A KeyError of a dictionary's depth was told as `KeyError: 'width'`, without a place."""
    told = own_handler(tmp_path, "def build(sizes):\n    return sizes['width']\n")
    places = f"({tmp_path}/handler.py:13 in load, {tmp_path}/net.py:2 in build)"
    assert told.endswith(f"failed to load: KeyError: 'width' {places}")


def test_what_a_handlers_file_raises_is_told_with_its_places(tmp_path: Path) -> None:
    told = own_handler(tmp_path, "import json\nbuild = json.loads('{')\n")
    assert f"({tmp_path}/handler.py:3 in <module>, {tmp_path}/net.py:2 in <module>)" in told
