"""A small request that a model of our server answers, by its description alone. Pure."""

import json
import math
import shlex
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.inference.description import RAGGED, ModelDescription
from batchedmodel_contract.inference.tensors import BINARY_SIZE, HEADER_LENGTH, Datatype
from batchedmodel_contract.processes.sidecar_api import infer_path

_TEXT: Final = "A sentence."
_QUESTION: Final = "What is batching?"
_MOST_JSON_VALUES: Final = 64
"""Of all that are written out; those of further tensors are bytes of zeros behind the JSON."""
_WITHOUT_JSON: Final = (Datatype.FP16, Datatype.BF16)


class Task(StrEnum):
    """What a model may be asked for."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    CLASSIFICATION = "classification"
    RANKING = "ranking"
    INFERENCE = "inference"
    """Tensors in and out, or texts in: every model does it."""


class Example(NamedTuple):
    """A request that works as it stands."""

    path: str
    body: dict[str, Any]
    zeros: int = 0
    """Bytes of zeros that follow the JSON of the body."""


def tasks_of(model: ModelDescription, engine: GenerationDescription | None) -> tuple[Task, ...]:
    """All tasks of a model, what it is for first."""
    texts = _takes_texts(model)
    # The embeddings endpoint takes token ids where there is no tokenizer.
    tokens = [(one.datatype, one.shape) for one in model.inputs] == [(Datatype.INT64, (RAGGED,))]
    holds = {
        Task.CHAT: engine is not None and engine.chat_template is not None,
        Task.COMPLETIONS: engine is not None,
        Task.EMBEDDINGS: model.embedding is not None and (texts or tokens),
        Task.CLASSIFICATION: model.classification is not None and texts,
        Task.RANKING: model.ranking is not None and texts,
        Task.INFERENCE: True,
    }
    return tuple(task for task in Task if holds[task])


def example_of(model: ModelDescription, engine: GenerationDescription | None) -> Example:
    """A request for what the model is for."""
    match tasks_of(model, engine)[0]:
        case Task.CHAT:
            messages = [{"role": "user", "content": _QUESTION}]
            body = {"model": model.name, "messages": messages, "max_tokens": 100, "stream": True}
            return Example("/v1/chat/completions", body)
        case Task.COMPLETIONS:
            body = {"model": model.name, "prompt": "Once upon a time", "stream": True}
            return Example("/v1/completions", body)
        case Task.EMBEDDINGS:
            given = _TEXT if model.text else [0] * model.inputs[0].min_length
            return Example("/v1/embeddings", {"model": model.name, "input": given})
        case Task.CLASSIFICATION:
            return Example("/classify", {"inputs": _TEXT})
        case Task.RANKING:
            texts = ["Requests share a forward pass.", _TEXT]
            return Example("/rerank", {"query": _QUESTION, "texts": texts})
    return _inference(model)


def curl_line(example: Example, service: str) -> str:
    """A line for a shell that sends the request to the service at this address."""
    # An IPv6 address has brackets, which are a pattern to some shells.
    body, target = json.dumps(example.body), shlex.quote(f"{service}{example.path}")
    # Without -N, parts of a stream are shown late.
    if not example.zeros:
        return f"curl -sN {target} -H 'content-type: application/json' -d {shlex.quote(body)}"
    return (
        f"{{ printf %s {shlex.quote(body)}; head -c {example.zeros} /dev/zero; }} | "
        f"curl -sN {target} -H 'content-type: application/octet-stream' "
        f"-H '{HEADER_LENGTH}: {len(body)}' --data-binary @-"
    )


def _takes_texts(model: ModelDescription) -> bool:
    text = model.text
    return text is not None and {one.name for one in model.inputs} <= {text.tokens, text.segments}


def _inference(model: ModelDescription) -> Example:
    """A text, or one row of the least size; zeros are within every vocabulary."""
    text, path, zeros, written = model.text, infer_path(model.name), 0, 0
    if text is not None and _takes_texts(model):
        entry = {"name": text.name, "datatype": "BYTES", "shape": [1], "data": [_TEXT]}
        return Example(path, {"inputs": [entry]})
    least: dict[str, int] = {}
    for spec in model.inputs:
        least |= {one: max(spec.min_length, least.get(one, 1)) for one in spec.letters}
    entries = []
    for spec in model.inputs:
        letters = iter(spec.letters)
        shape = [least.get(next(letters, ""), 1) if n == RAGGED else n for n in spec.shape]
        values = math.prod(shape)
        data: dict[str, Any]
        if written + values > _MOST_JSON_VALUES or spec.datatype in _WITHOUT_JSON:
            zeros += (size := values * spec.datatype.size)
            data = {"parameters": {BINARY_SIZE: size}}
        else:
            written += values
            data = {"data": [False if spec.datatype is Datatype.BOOL else 0] * values}
        entry = {"name": spec.name, "datatype": spec.datatype, "shape": [1, *shape]}
        entries.append(entry | data)
    return Example(path, {"inputs": entries}, zeros)
