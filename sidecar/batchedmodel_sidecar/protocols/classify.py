"""Classification: TEI's `/predict` and vLLM's `/classify`, by the form of the question.

Models that classify tokens are asked in TEI's form and answer in transformers'. Of each token the
likeliest label is told, with the token's place in the text. What the tokenizer added, and tokens
that are part of nothing, are left out as transformers leaves them out.
"""

from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.description import Classification
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.json_bodies import (
    adapter_of,
    flag,
    json_object,
    optional_text,
    require_few,
    unable,
    usage,
)
from batchedmodel_sidecar.protocols.protocol import Body, Parsed
from batchedmodel_sidecar.protocols.rows import rows_of_texts, rows_of_tokens, tokens_of
from batchedmodel_sidecar.protocols.scores import (
    TRUNCATION,
    ScoreProtocol,
    must_stay_whole,
    probabilities,
    probability,
    raw_scores,
)
from batchedmodel_sidecar.tokenizer import Marks, Text

CLASSIFY: Final = TRUNCATION | {"inputs", "input", "model", "raw_scores", "user"}
_OUTSIDE: Final = "O"
"""By convention the label of tokens that are part of nothing."""
_TOKEN: Final = 64
"""Bytes of tensors that take as long to become JSON as an entry does beside its own scores."""


class _Form(NamedTuple):
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
        asked = json_object(body, CLASSIFY)
        named = adapter_of(asked, model.description.name, named=False)
        if model.description.classification is None:
            raise unable(named, model.description.name, "does not classify")
        if ("inputs" in asked) == ("input" in asked):
            raise InvalidInput("inputs", "or input is required, and not both")
        optional_text(asked, "user")
        tei = "inputs" in asked
        single, texts = _sequences(asked["inputs"]) if tei else _texts(asked["input"])
        refuse_many(len(texts), most_rows)
        field = "inputs" if tei else "input"
        whole = must_stay_whole(asked)
        form = _Form(tei=tei, single=single, raw=flag(asked, "raw_scores", default=False))
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
        form: _Form = parsed.memo
        entries = sum(len(marks.places) for marks in form.marks or ())
        return answer.size + _TOKEN * entries

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The labels of each text, or of its tokens, with scores, in the form of the question."""
        form: _Form = parsed.memo
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
