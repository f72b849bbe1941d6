"""Classification and ranking: protocols whose answers are scores, told apart by their questions.

Classification is TEI's `/predict` and vLLM's `/classify`. Models that classify tokens are asked in
TEI's form and answer in transformers'. Of each token the likeliest label is told, with the token's
place in the text. What the tokenizer added, and tokens that are part of nothing, are left out as
transformers leaves them out. Ranking of documents for a query has TEI's form, and that of Cohere
and Jina.
"""

import math
from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.description import Activation, Classification
from batchedmodel_contract.inference.tensors import Buffer, bytes_to_values
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.reading import ruled
from batchedmodel_contract.schema.rules import Whole
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import CallError, refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.json_bodies import (
    adapter_of,
    flag,
    json_object,
    optional_text,
    require_few,
    require_text,
    unable,
    usage,
)
from batchedmodel_sidecar.protocols.protocol import Body, Parsed, PublicProtocol
from batchedmodel_sidecar.protocols.rows import rows_of_texts, rows_of_tokens, tokens_of
from batchedmodel_sidecar.tokenizer import Marks, Text

TRUNCATION: Final = frozenset({"truncate", "truncation_direction"})
"""TEI's fields about long texts."""
CLASSIFY: Final = TRUNCATION | {"inputs", "input", "model", "raw_scores", "user"}
_OUTSIDE: Final = "O"
"""By convention the label of tokens that are part of nothing."""
_TOKEN: Final = 64
"""Bytes of tensors that take as long to become JSON as an entry does beside its own scores."""
OF_TEI: Final = TRUNCATION | {"query", "texts", "raw_scores", "return_text"}
OF_COHERE: Final = frozenset({"model", "query", "documents", "top_n", "return_documents"})
_COUNT: Final = Whole(minimum=1, maximum=2**31)
_KINDS: Final = {429: "Overloaded", 503: "Unhealthy"}


class ScoreProtocol(PublicProtocol):
    """A protocol whose errors are read by clients of TEI and of Cohere."""

    def error(self, error: CallError) -> Body:
        """TEI's `error` and `error_type` beside Cohere's `message`."""
        kind = _KINDS.get(error.status) or ("Validation" if error.status < 500 else "Backend")
        document = {"error": error.message, "error_type": kind, "message": error.message}
        return Body(data=orjson.dumps(document))


class _Labelling(NamedTuple):
    """How the scores are wanted."""

    tei: bool
    """A list of labels with scores, the likeliest first; otherwise vLLM's list of objects."""
    single: bool
    """In TEI's form: the question holds one text, not a list."""
    raw: bool
    marks: tuple[Marks, ...] | None = None
    """Of each text, where its tokens come from; None where texts are classified, not tokens."""


class ClassifyProtocol(ScoreProtocol):
    """`POST /classify` and `POST /predict`."""

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """One row for each text or pair; raises `InvalidInput` or `Rejected`."""
        fields = json_object(body, CLASSIFY)
        named = adapter_of(fields, model.description.name, named=False)
        if model.description.classification is None:
            raise unable(named, model.description.name, "does not classify")
        if ("inputs" in fields) == ("input" in fields):
            raise InvalidInput("inputs", "or input is required, and not both")
        optional_text(fields, "user")
        tei = "inputs" in fields
        single, texts = _sequences(fields["inputs"]) if tei else _texts(fields["input"])
        refuse_many(len(texts), most_rows)
        field = "inputs" if tei else "input"
        whole = must_stay_whole(fields)
        form = _Labelling(tei=tei, single=single, raw=flag(fields, "raw_scores", default=False))
        if model.description.classifies_tokens:
            if not tei:
                rule = "is for models that classify texts; this one classifies tokens: send inputs"
                raise InvalidInput("input", rule)
            _refuse_pairs(texts)
            tokens = await tokens_of(model, field).encode(texts, whole=whole, marked=True)
            rows = rows_of_tokens(tokens, model.description, field)
            form = form._replace(marks=tuple(one.marks for one in tokens if one.marks))
        else:
            rows = await rows_of_texts(texts, model, field, whole=whole)
        return Parsed(call=model.call_of(rows), memo=form, named=named)

    def texts(self, parsed: Parsed, answer: Answer) -> int:
        """All scores, and for each token what its entry holds beside them."""
        form: _Labelling = parsed.memo
        entries = sum(len(marks.places) for marks in form.marks or ())
        return answer.size + _TOKEN * entries

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The labels of each text, or of its tokens, with scores, in the form of the question."""
        form: _Labelling = parsed.memo
        classes = model.description.classification
        assert classes is not None, "asked of a model that does not classify: our bug"
        classes = classes.by(parsed.labels)
        if form.marks is not None:
            each = zip(raw_scores(answer, classes.output), form.marks, strict=True)
            told = [labelled(row, marks, classes, raw=form.raw) for row, marks in each]
            return Body(data=orjson.dumps(told[0] if form.single else told))
        scores = [
            row if form.raw else probabilities(row, classes.activation)
            for row in raw_scores(answer, classes.output)
        ]
        if form.tei:
            ranked = [_ranked(row, classes.labels) for row in scores]
            return Body(data=orjson.dumps(ranked[0] if form.single else ranked))
        document = {
            "object": "list",
            "model": parsed.answered_by(model),
            "data": [_entry(index, row, classes.labels) for index, row in enumerate(scores)],
            "usage": usage(parsed.call.rows),
        }
        return Body(data=orjson.dumps(document))


def labelled(
    scores: list[Any], marks: Marks, classes: Classification, *, raw: bool
) -> list[dict[str, Any]]:
    """An entry for each token of interest; `scores` are those of all tokens, one after another."""
    entries, labels, width = [], classes.labels, len(classes.labels)
    for place, word, start, end in zip(*marks, strict=True):
        own = scores[place * width : (place + 1) * width]
        highest: Any = max(own)
        label = labels[own.index(highest)]
        # Its probability is computed last: most tokens are part of nothing.
        if label != _OUTSIDE:
            score: Any = highest if raw else probability(highest, own, classes.activation)
            span = {"index": place, "word": word, "start": start, "end": end}
            entries.append({"entity": label, "score": score, **span})
    return entries


def _ranked(scores: list[Any], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """TEI's form: the likeliest label first."""
    pairs = sorted(zip(scores, labels, strict=True), key=lambda pair: -pair[0])
    return [{"score": score, "label": label} for score, label in pairs]


def _entry(index: int, scores: list[Any], labels: tuple[str, ...]) -> dict[str, Any]:
    """vLLM's form: the likeliest label, and all scores in the order of the labels."""
    label = labels[scores.index(max(scores))]
    return {"index": index, "label": label, "probs": scores, "num_classes": len(labels)}


def _sequences(given: object) -> tuple[bool, list[Text]]:
    """TEI's inputs: a text, a pair of texts, or a list of lists of one or two texts."""
    if isinstance(given, list) and given and all(isinstance(one, list) for one in given):
        require_few(given, "inputs")
        return False, [_sequence(one, f"inputs[{index}]") for index, one in enumerate(given)]
    return True, [_sequence(given if isinstance(given, list) else [given], "inputs")]


def _sequence(given: list[Any], field: str) -> Text:
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) != len(given) or not 1 <= len(texts) <= 2:
        raise InvalidInput(field, "is not a text or a pair of texts", given)
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def _texts(given: object) -> tuple[bool, list[Text]]:
    """vLLM's input: a text or a list of texts."""
    texts: Any = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise InvalidInput("input", "is not a text or a list of texts", given)
    require_few(texts, "input")
    return False, texts


def _refuse_pairs(texts: list[Text]) -> None:
    for text in texts:
        if not isinstance(text, str):
            # Its tokens' places could be in either text.
            rule = "is a pair of texts, whose tokens this model does not classify; send [[a], [b]]"
            raise InvalidInput("inputs", rule, list(text))


class _Ranking(NamedTuple):
    """How the ranking is wanted."""

    documents: list[str] | None
    """What to give back with each rank; None when only its index is wanted."""
    tei: bool
    raw: bool
    first: int | None
    """How many of the best are wanted; None: all."""


class RerankProtocol(ScoreProtocol):
    """`POST /rerank`, `/v1/rerank` and `/v2/rerank`."""

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """One row for each document, paired with the query; raises `InvalidInput` or `Rejected`."""
        fields = json_object(body, OF_TEI | OF_COHERE)
        named = adapter_of(fields, model.description.name, named=False)
        if model.description.ranking is None:
            raise unable(named, model.description.name, "does not rank")
        tei = "texts" in fields
        for field in fields:
            if field not in (OF_TEI if tei else OF_COHERE):
                rule = f"is not taken beside {'texts' if tei else 'documents'}"
                raise InvalidInput(field, rule)
        query, field = require_text(fields, "query"), "texts" if tei else "documents"
        documents = _documents(fields.get(field), field, plain=tei)
        refuse_many(len(documents), most_rows)
        pairs = [(query, document) for document in documents]
        rows = await rows_of_texts(pairs, model, field, whole=must_stay_whole(fields))
        shown = flag(fields, "return_text" if tei else "return_documents", default=False)
        top_n = fields.get("top_n")
        form = _Ranking(
            documents=documents if shown else None,
            tei=tei,
            raw=flag(fields, "raw_scores", default=False),
            first=None if top_n is None else ruled(_COUNT, top_n, "top_n"),
        )
        return Parsed(call=model.call_of(rows), memo=form, named=named)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The documents' places in the question, the most relevant first."""
        form: _Ranking = parsed.memo
        raw = [row[0] for row in raw_scores(answer, model.description.ranking or "")]
        ranked = sorted(range(len(raw)), key=lambda index: -raw[index])[: form.first]
        scores = raw if form.raw else [sigmoid(score) for score in raw]
        entries: list[dict[str, Any]] = [
            {"index": index, "score" if form.tei else "relevance_score": scores[index]}
            for index in ranked
        ]
        if form.documents is not None:
            for entry in entries:
                text = form.documents[entry["index"]]
                entry |= {"text": text} if form.tei else {"document": {"text": text}}
        document = {
            "model": parsed.answered_by(model),
            "results": entries,
            "usage": usage(parsed.call.rows),
        }
        return Body(data=orjson.dumps(entries if form.tei else document))


def _documents(given: object, field: str, *, plain: bool) -> list[str]:
    """Texts; in Cohere's form an object with a text stands for it as well."""
    if not isinstance(given, list) or not given:
        raise InvalidInput(field, "must be a list of at least one text", given)
    require_few(given, field)
    found = [
        one["text"] if not plain and isinstance(one, dict) and one.keys() == {"text"} else one
        for one in given
    ]
    for index, one in enumerate(found):
        if not isinstance(one, str):
            raise InvalidInput(f"{field}[{index}]", "is not a text", one)
    return found


def probabilities(raw: list[float], activation: Activation) -> list[float]:
    """What the raw scores mean, each from 0 to 1."""
    if activation is Activation.SIGMOID:
        return [sigmoid(score) for score in raw]
    highest = max(raw)
    powers = [math.exp(score - highest) for score in raw]
    total = math.fsum(powers)
    return [power / total for power in powers]


def probability(highest: float, raw: list[float], activation: Activation) -> float:
    """Of the highest of the raw scores alone, what `probabilities` says of it."""
    if activation is Activation.SIGMOID:
        return sigmoid(highest)
    return 1.0 / math.fsum([math.exp(score - highest) for score in raw])


def sigmoid(score: float) -> float:
    """1 / (1 + e^-score), for scores of any size."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    power = math.exp(score)
    return power / (1 + power)


def raw_scores(answer: Answer, name: str) -> list[list[Any]]:
    """The raw scores of each row in one output, whole numbers as such.

    Raises `InvalidInput` when JSON has none.
    """
    index = [output.name for output in answer.outputs].index(name)
    datatype = answer.outputs[index].datatype
    return [bytes_to_values(value.data, datatype, name) for value in answer.column(index)]


def must_stay_whole(fields: dict[str, Any]) -> bool:
    """Whether long texts are to be refused and not cut; raises `InvalidInput`."""
    direction = fields.get("truncation_direction")
    if direction is not None and direction not in ("right", "Right"):
        raise InvalidInput("truncation_direction", "is not right: texts are cut there", direction)
    return not flag(fields, "truncate", default=True)
