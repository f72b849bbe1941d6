"""What a model takes and gives, as its server says in its v2 metadata.

The model server derives it from the handler's declaration; the sidecar validates requests by it,
measures lengths by it and shows it to its own callers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from batchedmodel_contract.inference.params import Param, param_from_mapping
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.reading import camel_case, ruled
from batchedmodel_contract.schema.rules import Truth, Whole

RAGGED: Final = -1
"""A dimension that differs from item to item."""

_EXTENSION: Final = "batchedmodel.batch"
_OURS: Final = "batchedmodel"
_AT_LEAST_ONE: Final = Whole(minimum=1)


class CostRule(StrEnum):
    """What the device pays for a batch."""

    PADDED = "Padded"
    """Rows x the longest."""
    PACKED = "Packed"
    """The sum of the lengths."""
    ROWS = "Rows"
    """Rows alone; every item has the same size."""

    def paid(self, *, rows: int, longest: int, total: int) -> int:
        """What the device pays for a batch of so many rows, by their longest and all lengths."""
        if self is CostRule.PADDED:
            return rows * longest
        return total if self is CostRule.PACKED else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of one item, without batch dimension; `RAGGED` where sizes vary."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    max_length: int | None = None
    """Largest size of each ragged dimension; longer items are refused."""
    min_length: int = 1
    """Of an input, their least size."""
    letters: tuple[str, ...] = ()
    """Of its ragged dimensions, in order: of one item, sizes of equal letters are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInput:
    """How text becomes an input tensor; the tokenizer itself is fetched apart."""

    name: str
    """Name under which callers send text (BYTES, one element per row)."""
    tokens: str
    """The INT64 input that takes the token ids."""
    max_tokens: int
    """Longer texts are truncated to this, special tokens included."""
    segments: str | None = None
    """The INT64 input that takes each token's segment: 1 in the second text of a pair, else 0."""


class Activation(StrEnum):
    """What makes probabilities of raw scores (logits)."""

    SOFTMAX = "Softmax"
    """One of the labels holds."""
    SIGMOID = "Sigmoid"
    """Each holds or does not, by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What raw scores mean, and how classification requests are answered."""

    output: str
    """The FP32 output that gives a raw score (logit) for each label: one row of them for an item,
    or one for each of its tokens."""
    labels: tuple[str, ...]
    activation: Activation

    def by(self, labels: tuple[str, ...] | None) -> "Classification":
        """The same by the labels of an adapter, where it has some of its own."""
        return self if labels is None else replace(self, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """Everything that a batching proxy must know of a model beside its speed."""

    name: str
    version: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cost_rule: CostRule
    equal_lengths: bool = False
    """Whether only items of equal shapes may share a batch: padding would change their answers."""
    text: TextInput | None = None
    embedding: str | None = None
    """The output that answers embedding requests."""
    shortest_embedding: int | None = None
    """The least number of dimensions to which embeddings may be cut, of models that were trained
    for it (Matryoshka); None: they may not be cut."""
    classification: Classification | None = None
    ranking: str | None = None
    """The FP32 output that gives one raw score (logit) for a pair of texts, query and document."""
    idempotent: bool = True
    """Whether a row may be run again after its batch failed."""
    precision: str | None = None
    """What the model computes in, such as BF16; None: its server does not say."""
    params: Mapping[str, Param] = field(default_factory=dict)
    """What each request may set for its rows."""

    @property
    def classifies_tokens(self) -> bool:
        """Whether what is classified is each token of an item, and not the item."""
        classes = self.classification
        return classes is not None and any(
            spec.name == classes.output and len(spec.shape) > 1 for spec in self.outputs
        )

    def of_adapter(self, name: str, labels: tuple[str, ...] | None) -> "ModelDescription":
        """The same of one of its adapters; `labels`: see `Classification.by`."""
        classes = self.classification
        return replace(self, name=name, classification=classes and classes.by(labels))

    def to_metadata(self) -> dict[str, Any]:
        """The v2 metadata document; what v2 has no word for stands under a key of our own."""
        lengths = {
            spec.name: spec.max_length for spec in self.inputs if spec.max_length is not None
        }
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": self.platform,
            "inputs": [_entry(spec) for spec in self.inputs],
            "outputs": [_entry(spec) for spec in self.outputs],
            "extensions": [_EXTENSION],
            _OURS: {
                "costRule": self.cost_rule,
                "equalLengths": self.equal_lengths,
                "maxLengths": lengths,
                "minLengths": {spec.name: spec.min_length for spec in self.inputs},
                "letters": {"inputs": _letters(self.inputs), "outputs": _letters(self.outputs)},
                "text": _document(self.text),
                "embedding": self.embedding,
                "shortestEmbedding": self.shortest_embedding,
                "classification": _document(self.classification),
                "ranking": self.ranking,
                "idempotent": self.idempotent,
                "precision": self.precision,
                "parameters": {name: param.to_mapping() for name, param in self.params.items()},
            },
        }


def description_from_metadata(metadata: Mapping[str, Any]) -> ModelDescription:
    """The description in a metadata document of our server; raises `InvalidInput`."""
    try:
        ours = metadata[_OURS]
        description = ModelDescription(
            name=metadata["name"],
            version=metadata["versions"][0],
            platform=metadata["platform"],
            inputs=tuple(_input(entry, ours) for entry in metadata["inputs"]),
            outputs=tuple(
                _spec(entry, ours["letters"]["outputs"]) for entry in metadata["outputs"]
            ),
            cost_rule=CostRule(ours["costRule"]),
            equal_lengths=Truth().read(ours["equalLengths"]),
            text=_text(ours["text"]),
            embedding=ours["embedding"],
            shortest_embedding=_size(ours["shortestEmbedding"]),
            classification=_classification(ours["classification"]),
            ranking=ours["ranking"],
            idempotent=Truth().read(ours["idempotent"]),
            precision=None if ours["precision"] is None else Datatype(ours["precision"]),
            params={name: param_from_mapping(one) for name, one in ours["parameters"].items()},
        )
    except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput("metadata", f"is not a description of a model: {error!r}") from error
    check_roles(description)
    return description


def check_roles(description: ModelDescription) -> None:
    """Raise `InvalidInput` where a role, such as embedding, names a tensor that does not fit."""
    text, classes, ranking = description.text, description.classification, description.ranking
    shortest = description.shortest_embedding
    if text is not None:
        _check_text(description, text)
    if description.embedding is not None:
        shape = _shape_of(description, "embedding", description.embedding)
        if not shape:
            raise InvalidInput("embedding", "names an output that is one number", list(shape))
        if shortest is not None and not 1 <= shortest <= shape[-1]:
            raise InvalidInput("shortest_embedding", f"is not from 1 to {shape[-1]}", shortest)
    elif shortest is not None:
        raise InvalidInput("shortest_embedding", "is said of a model without embeddings", shortest)
    if classes is not None:
        shape = _shape_of(description, "classification", classes.output)
        if shape not in ((len(classes.labels),), (RAGGED, len(classes.labels))):
            rule = f"is not one score for each of its {len(classes.labels)} labels"
            raise InvalidInput("classification", rule, list(shape))
    if ranking is not None:
        shape = _shape_of(description, "ranking", ranking)
        if shape not in ((), (1,)):
            raise InvalidInput("ranking", "is not one score for each pair", list(shape))


def _check_text(description: ModelDescription, text: TextInput) -> None:
    ruled(_AT_LEAST_ONE, text.max_tokens, "text.max_tokens")
    for name in (text.tokens, text.segments):
        if name is not None:
            _check_tokens(description, name, text.max_tokens)


def _check_tokens(description: ModelDescription, name: str, max_tokens: int) -> None:
    spec = next((spec for spec in description.inputs if spec.name == name), None)
    if spec is None:
        raise InvalidInput("text", "names an input that the model does not have", name)
    if spec.datatype is not Datatype.INT64 or spec.shape != (RAGGED,):
        raise InvalidInput("text", "names an input that is not INT64 of one lettered size", name)
    if spec.max_length is not None and max_tokens > spec.max_length:
        rule = f"cuts texts to more tokens than {name} takes, {spec.max_length}"
        raise InvalidInput("text", rule, max_tokens)


def _shape_of(description: ModelDescription, role: str, output: str) -> tuple[int, ...]:
    for spec in description.outputs:
        if spec.name == output:
            return spec.shape
    raise InvalidInput(role, "names an output that the model does not have", output)


def _document(role: TextInput | Classification | None) -> dict[str, Any] | None:
    if role is None:
        return None
    return {camel_case(name): value for name, value in asdict(role).items()}


def _size(value: object) -> int | None:
    return None if value is None else Whole().read(value)


def _text(mapping: Mapping[str, Any] | None) -> TextInput | None:
    if mapping is None:
        return None
    return TextInput(
        name=mapping["name"],
        tokens=mapping["tokens"],
        max_tokens=mapping["maxTokens"],
        segments=mapping["segments"],
    )


def _classification(mapping: Mapping[str, Any] | None) -> Classification | None:
    if mapping is None:
        return None
    return Classification(
        output=mapping["output"],
        labels=tuple(mapping["labels"]),
        activation=Activation(mapping["activation"]),
    )


def _entry(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": [RAGGED, *spec.shape]}


def _input(entry: Mapping[str, Any], ours: Mapping[str, Any]) -> TensorSpec:
    spec = _spec(entry, ours["letters"]["inputs"])
    return replace(
        spec,
        max_length=_size(ours["maxLengths"].get(spec.name)),
        min_length=_AT_LEAST_ONE.read(ours["minLengths"][spec.name]),
    )


def _spec(entry: Mapping[str, Any], letters: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(
        name=entry["name"],
        datatype=Datatype(entry["datatype"]),
        shape=tuple(map(int, entry["shape"][1:])),
        letters=tuple(map(str, letters[entry["name"]])),
    )


def _letters(specs: tuple[TensorSpec, ...]) -> dict[str, list[str]]:
    return {spec.name: list(spec.letters) for spec in specs}
