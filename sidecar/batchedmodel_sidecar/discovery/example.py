"""A small request that a model of our server answers, by its description alone. Pure."""

import json
import math
import shlex
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.inference.description import RAGGED, ModelDescription, TensorSpec
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.inference.v2 import BINARY_SIZE, HEADER_LENGTH
from batchedmodel_contract.processes.server_api import infer_path

_TEXT: Final = "A sentence."
_QUESTION: Final = "What is batching?"
_MOST_JSON_VALUES: Final = 64
"""Of a tensor whose values are written out; larger ones are bytes of zeros behind the JSON."""
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


def tasks_of(
    description: ModelDescription, generation: GenerationDescription | None
) -> tuple[Task, ...]:
    """All tasks of a model, what it is for first."""
    texts = _takes_texts(description)
    # The embeddings endpoint takes token ids where there is no tokenizer.
    inputs = [(spec.datatype, spec.shape) for spec in description.inputs]
    tokens = inputs == [(Datatype.INT64, (RAGGED,))]
    holds = {
        Task.CHAT: generation is not None and generation.chat_template is not None,
        Task.COMPLETIONS: generation is not None,
        Task.EMBEDDINGS: description.embedding is not None and (texts or tokens),
        Task.CLASSIFICATION: description.classification is not None and texts,
        Task.RANKING: description.ranking is not None and texts,
        Task.INFERENCE: True,
    }
    return tuple(task for task in Task if holds[task])


def example_of(description: ModelDescription, generation: GenerationDescription | None) -> Example:
    """A request for what the model is for."""
    named: dict[str, Any] = {"model": description.name}
    match tasks_of(description, generation)[0]:
        case Task.CHAT:
            messages = [{"role": "user", "content": _QUESTION}]
            body = named | {"messages": messages, "stream": True}
            return Example("/v1/chat/completions", body)
        case Task.COMPLETIONS:
            body = named | {"prompt": "Once upon a time", "stream": True}
            return Example("/v1/completions", body)
        case Task.EMBEDDINGS:
            tokens = [0] * description.inputs[0].min_length
            return Example("/v1/embeddings", named | {"input": _text_of(description) or tokens})
        case Task.CLASSIFICATION:
            return Example("/classify", {"inputs": _TEXT})
        case Task.RANKING:
            texts = ["Requests share a forward pass.", _TEXT]
            return Example("/rerank", {"query": _QUESTION, "texts": texts})
    return _inference(description)


def curl_line(example: Example, service: str) -> str:
    """A line for a shell that sends the request to the service at this address."""
    body, target = json.dumps(example.body), f"{service}{example.path}"
    # Without -N, parts of a stream are shown late.
    if not example.zeros:
        return f"curl -sN {target} -H 'content-type: application/json' -d {shlex.quote(body)}"
    return (
        f"{{ printf %s {shlex.quote(body)}; head -c {example.zeros} /dev/zero; }} | "
        f"curl -sN {target} -H 'content-type: application/octet-stream' "
        f"-H '{HEADER_LENGTH}: {len(body)}' --data-binary @-"
    )


def _takes_texts(description: ModelDescription) -> bool:
    text = description.text
    return text is not None and all(
        spec.name in (text.tokens, text.segments) for spec in description.inputs
    )


def _text_of(description: ModelDescription) -> str | None:
    return _TEXT if _takes_texts(description) else None


def _inference(description: ModelDescription) -> Example:
    text, path = description.text, infer_path(description.name)
    if text is not None and _takes_texts(description):
        entry = {"name": text.name, "datatype": "BYTES", "shape": [1], "data": [_TEXT]}
        return Example(path, {"inputs": [entry]})
    least: dict[str, int] = {}
    for spec in description.inputs:
        for letter in spec.letters:
            least[letter] = max(spec.min_length, least.get(letter, 1))
    entries = [_entry(spec, least) for spec in description.inputs]
    sizes = [entry["parameters"][BINARY_SIZE] for entry in entries if "parameters" in entry]
    return Example(path, {"inputs": entries}, sum(sizes))


def _entry(spec: TensorSpec, least: dict[str, int]) -> dict[str, Any]:
    """One row of the least size; zeros, which are within every vocabulary."""
    letters = iter(spec.letters)
    shape = [
        least.get(next(letters, ""), spec.min_length) if size == RAGGED else size
        for size in spec.shape
    ]
    entry: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": [1, *shape]}
    values = math.prod(shape)
    if values > _MOST_JSON_VALUES or spec.datatype in _WITHOUT_JSON:
        return entry | {"parameters": {BINARY_SIZE: values * spec.datatype.size}}
    zero = {Datatype.BOOL: False, Datatype.FP32: 0.0, Datatype.FP64: 0.0}.get(spec.datatype, 0)
    return entry | {"data": [zero] * values}
