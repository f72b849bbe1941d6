"""Ranking of documents for a query: TEI's form, and that of Cohere and Jina, by the question."""

from typing import Any, Final, NamedTuple

import orjson

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.schema.rules import Whole
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.json_bodies import (
    adapter_of,
    flag,
    json_object,
    require_few,
    require_text,
    unable,
    usage,
    whole_number,
)
from batchedmodel_sidecar.protocols.protocol import Body, Parsed
from batchedmodel_sidecar.protocols.rows import rows_of_texts
from batchedmodel_sidecar.protocols.scores import (
    TRUNCATION,
    ScoreProtocol,
    must_stay_whole,
    raw_scores,
    sigmoid,
)

OF_TEI: Final = TRUNCATION | {"query", "texts", "raw_scores", "return_text"}
OF_COHERE: Final = frozenset({"model", "query", "documents", "top_n", "return_documents"})
_COUNT: Final = Whole(minimum=1, maximum=2**31)


class _Form(NamedTuple):
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
        asked = json_object(body, OF_TEI | OF_COHERE)
        named = adapter_of(asked, model.description.name, named=False)
        if model.description.ranking is None:
            raise unable(named, model.description.name, "does not rank")
        tei = "texts" in asked
        for field in asked:
            if field not in (OF_TEI if tei else OF_COHERE):
                rule = f"is not taken beside {'texts' if tei else 'documents'}"
                raise InvalidInput(field, rule)
        query, field = require_text(asked, "query"), "texts" if tei else "documents"
        documents = _documents(asked.get(field), field, plain=tei)
        refuse_many(len(documents), most_rows)
        pairs = [(query, document) for document in documents]
        rows = await rows_of_texts(pairs, model, field, whole=must_stay_whole(asked))
        shown = flag(asked, "return_text" if tei else "return_documents", default=False)
        top_n = asked.get("top_n")
        form = _Form(
            documents=documents if shown else None,
            tei=tei,
            raw=flag(asked, "raw_scores", default=False),
            first=None if top_n is None else whole_number(_COUNT, top_n, "top_n"),
        )
        return Parsed(call=model.call_of(rows), memo=form, named=named)

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The documents' places in the question, the most relevant first."""
        form: _Form = parsed.memo
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
