"""Open Inference Protocol v2 over REST: JSON and binary tensors."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from batchedmodel_contract.inference.batch import SHAPES
from batchedmodel_contract.inference.params import read_values
from batchedmodel_contract.inference.tensors import (
    Buffer,
    Datatype,
    Tensor,
    split_byte_elements,
)
from batchedmodel_contract.inference.v2 import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    MOST_STRINGS,
    Options,
    read_body,
    read_options,
    to_json,
    write_answer,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer
from batchedmodel_sidecar.codec.rows import rows_of_tensors, rows_of_texts
from batchedmodel_sidecar.errors import refuse_many
from batchedmodel_sidecar.lora.served import ChosenAdapter
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.adapter import Adapter, Body, Parsed
from batchedmodel_sidecar.protocols.headers import PARAMETERS, options_of_parameters
from batchedmodel_sidecar.protocols.json_bodies import read_json
from batchedmodel_sidecar.protocols.v2_forms import AnswerForms, Forms

_SMALL: Final = 16 * 1024
"""Bytes of a body up to which it is worth while to look for its form."""


class V2Adapter(Adapter):
    """`POST /v2/models/{name}/infer`."""

    def __init__(self) -> None:
        self.forms: Final = Forms()
        self._answers = AnswerForms()

    def parse_at_once(
        self, body: bytes, model: ReadyModel, most_rows: Callable[[], int]
    ) -> Parsed | None:
        """The call in a small body of a known form; None for any other. Raises as `parse` does."""
        return self.forms.parsed(body, model, most_rows) if len(body) <= _SMALL else None

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """Tensors as the model declares them, or its text input instead of its tokens."""
        formed = header_length is None and isinstance(body, bytes) and len(body) <= _SMALL
        if formed:
            known = self.forms.parsed(bytes(body), model, lambda: most_rows)
            if known is not None:
                return known
        most_strings = max(most_rows, MOST_STRINGS)
        head, tensors = read_body(
            body, header_length, "inputs", read_json, most_strings=most_strings
        )
        outputs = [output.name for output in model.description.outputs]
        declared, given = model.description.params, head.get("parameters")
        taken = PARAMETERS.union(declared) if declared else PARAMETERS
        output_options = read_options(head, outputs, taken)
        options = options_of_parameters(given)
        params = read_values(given, declared) if declared else None
        text = model.description.text
        if text is not None and len(tensors) == 1 and tensors[0].name == text.name:
            refuse_many(tensors[0].elements, most_rows)
            found = await rows_of_texts(_texts(tensors[0]), model, f"inputs.{text.name}")
        else:
            found = rows_of_tensors(tensors, model.description, most_rows=most_rows)
        parsed = Parsed(call=model.call_of(found, params), memo=output_options, options=options)
        if formed:
            self.forms.learn(bytes(body), tensors, parsed, head)
        return parsed

    def texts(self, parsed: Parsed, answer: Answer) -> int:
        """Those outputs that are not wanted as binary data."""
        output_options: Options = parsed.memo
        return sum(
            sum(len(value.data) for value in answer.column(index))
            for index, output in enumerate(answer.outputs)
            if output_options.selects(output.name) and not output_options.wants_binary(output.name)
        )

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The selected outputs, each as JSON or as binary data, as the caller asked for it."""
        output_options: Options = parsed.memo
        as_json = output_options.outputs is None and not output_options.binary
        if as_json and output_options.id is None and len(answer.rows) == 1:
            # What nearly everybody asks for.
            return Body(data=self._answers.body(answer, model, parsed.answered_by(model)))
        head: dict[str, Any] = {
            "model_name": parsed.answered_by(model),
            "model_version": model.description.version,
        }
        if output_options.id is not None:
            head["id"] = output_options.id
        tensors = answer.tensors()
        if as_json:
            head["outputs"] = [to_json(tensor) for tensor in tensors]
            return Body(data=orjson.dumps(head))
        # The shapes of a ragged output go with the output that they describe.
        selected = [t for t in tensors if output_options.selects(t.name.removesuffix(SHAPES))]
        length, parts = write_answer(
            head,
            selected,
            lambda name: output_options.wants_binary(name.removesuffix(SHAPES)),
            orjson.dumps,
        )
        data, *tail = parts
        if length is None:
            return Body(data=data)
        return Body(
            data=data,
            tail=tuple(tail),
            content_type="application/octet-stream",
            headers=((HEADER_LENGTH, str(length)),),
        )


def server_metadata(version: str) -> dict[str, Any]:
    """The v2 metadata of the server, whatever it serves."""
    return {"name": "batchedmodel", "version": version, "extensions": [BINARY_EXTENSION]}


def metadata(model: ReadyModel, adapter: ChosenAdapter | None = None) -> dict[str, Any]:
    """The v2 metadata of the model: the server's, with the text input that the sidecar adds.

    An adapter takes and gives what the model does; labels may be its own.
    """
    description = model.description
    if adapter is not None:
        description = description.of_adapter(adapter.name, adapter.labels)
    document = description.to_metadata()
    text = model.description.text
    if text is not None:
        entry = {"name": text.name, "datatype": Datatype.BYTES, "shape": [-1]}
        document["inputs"] = [entry, *document["inputs"]]
    # The batch extension is spoken inside the pod only.
    document.pop("extensions")
    return document


def _texts(tensor: Tensor) -> list[str]:
    field = f"inputs.{tensor.name}"
    if tensor.datatype is not Datatype.BYTES:
        raise InvalidInput(f"{field}.datatype", f"is not {Datatype.BYTES}", tensor.datatype)
    # [n] and [n, 1] are both in use for a column of texts.
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise InvalidInput(f"{field}.shape", "does not fit [-1] or [-1, 1]", list(tensor.shape))
    if tensor.elements == 0:
        raise InvalidInput(f"{field}.shape", "has no rows", list(tensor.shape))
    try:
        return [str(element, "utf-8") for element in split_byte_elements(tensor.data)]
    except UnicodeDecodeError as error:
        raise InvalidInput(field, "holds a text that is not UTF-8") from error
