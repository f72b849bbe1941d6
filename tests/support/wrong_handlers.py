"""Handlers that are wrong, each in one way that people really get wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from batchedmodel_contract.inference.description import Activation, Classification, TextInput
from batchedmodel_model_server.api.handler import Batch, Handler, Spec
from support.model_server_handlers import Echo

TEXT = TextInput(name="text", tokens="x", max_tokens=10)


class AsyncForward(Echo):
    """Awaits, as handlers of web servers do."""

    async def forward(self, batch: Batch) -> Mapping[str, Any]:  # type: ignore[override]
        """Echo."""
        return super().forward(batch)


class AsyncLoad(Echo):
    """Would never be loaded."""

    async def load(self, path: Path | None, device: str) -> None:  # type: ignore[override]
        """Nothing."""


class NoMethod(Echo):
    """Has a value where a method belongs."""

    check: Any = None


class OneName(Echo):
    """Lacks a comma."""

    parameter_names: ClassVar[Any] = "speed"


class OneLibrary(Echo):
    """Lacks a comma."""

    libraries: ClassVar[Any] = "json"


class AbsentLibrary(Echo):
    """Needs what is not installed."""

    libraries: ClassVar[tuple[str, ...]] = ("no_such_library",)


class OddDevice(Echo):
    """Gives an object for a name."""

    def device(self) -> Any:
        """No name."""
        return Path("cuda")


class ArgumentlessLoad(Echo):
    """Takes nothing to load from."""

    def load(self) -> None:  # type: ignore[override]
        """Nothing."""


class NoDeclaration(Handler):
    """Says nothing of its tensors."""

    def device(self) -> str:
        """None."""
        return "host"

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Nothing."""
        return {}


class OddCostRule(Echo):
    """Names the rule by a text."""

    cost_rule: Any = "Packed"


class NoTokenizer(Echo):
    """Takes texts that nobody can turn into tokens."""

    text = TEXT


class TokenizerAsText(NoTokenizer):
    """Read its file as text."""

    tokenizer: Any = "{}"


class OtherTokens(Echo):
    """Its tokens go nowhere."""

    text = TextInput(name="text", tokens="ids", max_tokens=10)
    tokenizer = b"{}"


class RealTokens(Echo):
    """Its tokens go where numbers with fractions go."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=10)}
    text = TEXT
    tokenizer = b"{}"


class LongTexts(Echo):
    """Cuts texts to more tokens than it takes."""

    text = TextInput(name="text", tokens="x", max_tokens=1001)
    tokenizer = b"{}"


class OtherEmbedding(Echo):
    """Its embedding is no output."""

    embedding = "vector"


class ScalarEmbedding(Echo):
    """Its embedding is one number."""

    embedding = "sum"


class LongCut(Echo):
    """May be cut to more than it has."""

    embedding = "pair"
    shortest_embedding = 3


class CutOfNothing(Echo):
    """May be cut, but has no embedding."""

    shortest_embedding = 3


class ThreeLabels(Echo):
    """Has a label too many."""

    classification = Classification(
        output="pair", labels=("a", "b", "c"), activation=Activation.SOFTMAX
    )


class VectorRanking(Echo):
    """Ranks by two numbers."""

    ranking = "pair"
