"""A right body for every form of every endpoint, models that take them, and ways to damage them."""

import copy
from dataclasses import replace
from typing import Any, Final

import orjson
from hypothesis import reject
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import RAGGED, TensorSpec
from batchedmodel_contract.inference.params import Param
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.tokenizer import Tokens, text_threads
from support.echo_server import EVERY_DATATYPE, echoing
from support.sidecar_world import MODEL
from support.strategies import json_values
from support.text_handlers import Classifier, Embedder, Ranker, tokenizer_json

TEXTS: Final = replace(
    MODEL,
    description=replace(
        MODEL.description,
        inputs=tuple(
            TensorSpec(name=name, datatype=Datatype.INT64, shape=(RAGGED,), max_length=16)
            for name in ("ids", "segments")
        ),
        outputs=(
            TensorSpec(name="vector", datatype=Datatype.FP32, shape=(4,)),
            TensorSpec(name="scores", datatype=Datatype.FP32, shape=(3,)),
            TensorSpec(name="score", datatype=Datatype.FP32, shape=()),
        ),
        text=Ranker.text,
        embedding=Embedder.embedding,
        shortest_embedding=2,
        classification=Classifier.classification,
        ranking=Ranker.ranking,
    ),
    tokens=Tokens(tokenizer_json(), Ranker.text, text_threads(1)),
)
"""Embeds, classifies and ranks."""
EVERYTHING: Final = replace(MODEL, description=EVERY_DATATYPE)
PAIR: Final = replace(
    MODEL,
    description=replace(
        echoing(a=(Datatype.FP32, (2,)), b=(Datatype.BYTES, (RAGGED,))),
        params={"scale": Param("FP32", 1.0, max=9), "way": Param("BYTES", "", choices=("", "a"))},
    ),
    rows_pad=False,
)

Right = tuple[Endpoint, ReadyModel, dict[str, Any]]

RIGHT: Final[list[Right]] = [
    (Endpoint.EMBEDDINGS, TEXTS, {"model": "m", "input": ["a", "b c"], "dimensions": 2}),
    (Endpoint.EMBEDDINGS, TEXTS, {"model": "m", "input": [[1, 2], [3]], "user": "u"}),
    (Endpoint.CLASSIFY, TEXTS, {"inputs": [["a"], ["b", "c"]], "truncate": True}),
    (Endpoint.CLASSIFY, TEXTS, {"model": "m", "input": ["a"], "raw_scores": False}),
    (Endpoint.RERANK, TEXTS, {"query": "a", "texts": ["b", "c"], "return_text": True}),
    (Endpoint.RERANK, TEXTS, {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    (Endpoint.V1_PREDICT, TEXTS, {"instances": ["a", {"text": "b"}]}),
    (Endpoint.V1_PREDICT, PAIR, {"instances": [{"a": [1, 2.5], "b": ["c", {"b64": "ZA=="}]}]}),
    (
        Endpoint.V1_PREDICT,
        PAIR,
        {"instances": [{"a": [1, 2], "b": ["c"]}], "parameters": {"way": "a"}},
    ),
    (Endpoint.V1_PREDICT, MODEL, {"instances": [[1, 2], {"x": [3]}]}),
    (
        Endpoint.V2_INFER,
        PAIR,
        {
            "id": "7",
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [3, 4]]},
                {"name": "b", "datatype": "BYTES", "shape": [2, 1], "data": ["c", "dd"]},
            ],
            "outputs": [{"name": "echo_a", "parameters": {"binary_data": True}}],
            "parameters": {"binary_data_output": False, "timeout": 5, "priority": 1, "scale": 2},
        },
    ),
    (
        Endpoint.V2_INFER,
        TEXTS,
        {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}]},
    ),
]

_ODD_VALUES: Final = (
    json_values(max_leaves=5)
    | st.sampled_from([0, -1, 2**63, 2**64, -(2**63) - 1, 1e308, "", "\x00", [], {}, [[]], [{}]])
    | st.lists(st.sampled_from([0, "a", [], None]), max_size=40)
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Endpoint, ReadyModel, bytes]:
    """A right body in which one or two values are others, have another name or are missing."""
    endpoint, model, document = draw(st.sampled_from(RIGHT))
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        listed = _places(changed)
        if not listed:
            break
        *way, last = draw(st.sampled_from(listed))
        holder: Any = changed
        for key in way:
            holder = holder[key]
        if draw(st.booleans()):
            # A copy: the next change may be made within it.
            holder[last] = copy.deepcopy(draw(_ODD_VALUES))
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=5))] = holder.pop(last)
        else:
            del holder[last]
    try:
        return endpoint, model, orjson.dumps(changed)
    except TypeError:
        reject()  # half a surrogate pair, or an integer that this writer does not write


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value within a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        steps: list[tuple[Any, Any]] = list(value.items())
    else:
        steps = list(enumerate(value)) if isinstance(value, list) else []
    for key, inner in steps:
        found += _places(inner, (*path, key))
    return found
