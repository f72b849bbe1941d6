"""Ranking of documents for a query: TEI's form, and that of Cohere and Jina, by the question."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.rules import Broken, Whole
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.codec.rows import rows_of_texts
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Body, Parsed
from batchedmodel_sidecar.protocols.json_bodies import (
    flag,
    json_object,
    require_model,
    require_text,
)
from batchedmodel_sidecar.protocols.scores import (
    MAX_INPUTS,
    TRUNCATION,
    error_body,
    must_stay_whole,
    raw_scores,
    sigmoid,
)

_OF_TEI: Final = TRUNCATION | {"query", "texts", "raw_scores", "return_text"}
_OF_COHERE: Final = frozenset({"model", "query", "documents", "top_n", "return_documents"})
_COUNT: Final = Whole(minimum=1, maximum=2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How the ranking is wanted."""

    documents: list[str] | None
    """What to give back with each rank; None when only its index is wanted."""
    tei: bool
    raw: bool
    first: int | None
    """How many of the best are wanted; None: all."""


class RerankAdapter:
    """`POST /rerank`, `/v1/rerank` and `/v2/rerank`."""

    async def parse(self, body: Buffer, header_length: str | None, model: ReadyModel) -> Parsed:
        """One row for each document, paired with the query; raises `InvalidInput` or `Rejected`."""
        asked = json_object(body, _OF_TEI | _OF_COHERE)
        require_model(asked, model, named=False)
        if model.description.ranking is None:
            raise InvalidInput("model", "does not rank", model.description.name)
        tei = "texts" in asked
        for field in asked:
            if field not in (_OF_TEI if tei else _OF_COHERE):
                rule = f"is not taken beside {'texts' if tei else 'documents'}"
                raise InvalidInput(field, rule)
        query, field = require_text(asked, "query"), "texts" if tei else "documents"
        documents = _documents(asked.get(field), field, plain=tei)
        pairs = [(query, document) for document in documents]
        rows = await rows_of_texts(pairs, model, field, whole=must_stay_whole(asked))
        shown = flag(asked, "return_text" if tei else "return_documents", default=False)
        form = _Form(
            documents=documents if shown else None,
            tei=tei,
            raw=flag(asked, "raw_scores", default=False),
            first=_count(asked.get("top_n")),
        )
        return Parsed(call=model.call_of(rows), memo=form)

    def texts(self, parsed: Parsed, answer: Answer) -> int:
        """All of them."""
        return answer.size

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The documents' places in the question, the most relevant first."""
        form: _Form = parsed.memo
        raw = [row[0] for row in raw_scores(answer, model.description.ranking or "")]
        ranked = sorted(range(len(raw)), key=lambda index: -raw[index])[: form.first]
        scores = raw if form.raw else [sigmoid(score) for score in raw]
        if form.tei:
            return Body(data=orjson.dumps([_rank(i, scores[i], form.documents) for i in ranked]))
        tokens = sum(row.length for row in parsed.call.rows)
        document = {
            "model": model.description.name,
            "results": [_result(index, scores[index], form.documents) for index in ranked],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return Body(data=orjson.dumps(document))

    def error(self, error: CallError) -> Body:
        """As TEI's and Cohere's clients read it."""
        return error_body(error)


def _rank(index: int, score: float, texts: list[str] | None) -> dict[str, Any]:
    rank = {"index": index, "score": score}
    return rank if texts is None else {**rank, "text": texts[index]}


def _result(index: int, score: float, documents: list[str] | None) -> dict[str, Any]:
    result = {"index": index, "relevance_score": score}
    return result if documents is None else {**result, "document": {"text": documents[index]}}


def _documents(given: object, field: str, *, plain: bool) -> list[str]:
    """Texts; in Cohere's form an object with a text stands for it as well."""
    if not isinstance(given, list) or not given:
        raise InvalidInput(field, "must be a list of at least one text", given)
    if len(given) > MAX_INPUTS:
        raise InvalidInput(field, f"has {len(given)} entries; at most {MAX_INPUTS} are taken")
    found = [
        one["text"] if not plain and isinstance(one, dict) and one.keys() == {"text"} else one
        for one in given
    ]
    for index, one in enumerate(found):
        if not isinstance(one, str):
            raise InvalidInput(f"{field}[{index}]", "is not a text", one)
    return found


def _count(given: object) -> int | None:
    if given is None:
        return None
    try:
        return _COUNT.read(given)
    except Broken as broken:
        raise InvalidInput("top_n", str(broken), given) from broken
