"""Bodies of the public protocols: what is understood, what is refused and in which words."""

from array import array
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from batchedmodel_contract.inference.description import RAGGED, TensorSpec, TextInput
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.calls import Answer, Output, Value
from batchedmodel_sidecar.errors import CallError, Rejected
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.openai import EmbeddingsProtocol
from batchedmodel_sidecar.protocols.v2 import V2Protocol, metadata
from batchedmodel_sidecar.tokenizer import Tokens, text_threads
from support.sidecar_world import DESCRIPTION, MODEL

TEXT = TextInput(name="text", tokens="input_ids", max_tokens=4)
EMBEDDING_DESCRIPTION = replace(
    DESCRIPTION,
    inputs=(TensorSpec(name="input_ids", datatype=Datatype.INT64, shape=(RAGGED,), max_length=4),),
    outputs=(TensorSpec(name="embedding", datatype=Datatype.FP32, shape=(2,)),),
    text=TEXT,
    embedding="embedding",
)


@pytest.fixture
def embedder() -> ReadyModel:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokens = Tokens(tokenizer.to_str().encode(), TEXT, text_threads(1))
    return replace(MODEL, description=EMBEDDING_DESCRIPTION, tokens=tokens)


def v2_body(**changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "datatype": "UINT8", "shape": [1, 2], "data": [1, 2]}
    return {"inputs": [entry | changes]}


async def parsed_v2(document: Any, model: ReadyModel = MODEL) -> list[tuple[int, list[bytes]]]:
    parsed = await V2Protocol().parse(orjson.dumps(document), None, model, 4096)
    return [(row.length, [bytes(value.data) for value in row.values]) for row in parsed.call.rows]


async def parsed_openai(served: ReadyModel, /, **document: Any) -> list[list[int]]:
    body = orjson.dumps({"model": "m"} | document)
    parsed = await EmbeddingsProtocol().parse(body, None, served, 4096)
    return [array("q", bytes(row.values[0].data)).tolist() for row in parsed.call.rows]


class TestV2:
    async def test_flat_and_nested_data_give_the_same_rows(self) -> None:
        flat = await parsed_v2(v2_body(shape=[2, 2], data=[1, 2, 3, 4]))
        nested = await parsed_v2(v2_body(shape=[2, 2], data=[[1, 2], [3, 4]]))
        assert flat == nested == [(2, [b"\x01\x02"]), (2, [b"\x03\x04"])]

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ([], "body: is not a JSON object"),
            ({}, "inputs: must be a list of at least one tensor"),
            ({"inputs": []}, "inputs: must be a list of at least one tensor"),
            (v2_body(name="z"), 'inputs[0].name: "z" is not an input of this model; it takes x'),
            (v2_body(datatype="INT8"), 'inputs.x.datatype: "INT8" is not UINT8'),
            (v2_body(datatype=["UINT8"]), 'inputs[0].datatype: ["UINT8"] is not one of'),
            (v2_body(shape=[2], data=[1, 2]), "inputs.x.shape: [2] does not fit [-1, -1]"),
            (v2_body(shape=[0, 2], data=[]), "inputs.x.shape: [0, 2] has no rows"),
            (v2_body(shape=[2, 0], data=[]), "inputs.x.shape: [2, 0] has rows of size zero"),
            (v2_body(data=[1]), "inputs[0].data: has 1 values; the shape needs 2"),
            (v2_body(data=[1, "2"]), "inputs[0].data: has a value that is not a UINT8"),
            (v2_body(data=[1, 300]), "inputs[0].data: has a value outside the range of UINT8"),
            (v2_body(data=[1, True]), "inputs[0].data: has a value that is not a UINT8"),
            (
                v2_body(shape=[1, 17], data=[0] * 17),
                "inputs.x.shape: [1, 17] is longer than the model takes (16)",
            ),
            (v2_body() | {"id": 7}, "id: 7 is not a string"),
            (v2_body() | {"outputs": [{"name": "q"}]}, 'outputs[0].name: "q" is not an output'),
            (
                v2_body() | {"parameters": {"temperature": 1}},
                'parameters: "temperature" is not a parameter that is taken here',
            ),
        ],
        ids=lambda value: value[:40] if isinstance(value, str) else "",
    )
    async def test_a_wrong_request_is_told_field_value_and_rule(
        self, document: Any, message: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            await parsed_v2(document)
        assert str(caught.value).startswith(message)

    async def test_text_is_taken_in_place_of_tokens(self, embedder: ReadyModel) -> None:
        entry = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["one two", "one"]}
        rows = await parsed_v2({"inputs": [entry]}, embedder)
        assert [length for length, _ in rows] == [2, 1]

    async def test_the_answer_echoes_the_id_and_the_selected_outputs(self) -> None:
        document = v2_body() | {"id": "7", "outputs": [{"name": "y"}]}
        adapter = V2Protocol()
        parsed = await adapter.parse(orjson.dumps(document), None, MODEL, 4096)
        answer = Answer(
            outputs=(Output("y", Datatype.UINT8), Output("hidden", Datatype.UINT8)),
            rows=((Value((2,), b"\x05\x06"), Value((1,), b"\x07")),),
        )
        body = orjson.loads(adapter.render(parsed, answer, MODEL).data)
        assert body == {
            "model_name": "m",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "y", "datatype": "UINT8", "shape": [1, 2], "data": [5, 6]}],
        }

    async def test_binary_outputs_follow_the_head(self) -> None:
        document = v2_body() | {"parameters": {"binary_data_output": True}}
        adapter = V2Protocol()
        parsed = await adapter.parse(orjson.dumps(document), None, MODEL, 4096)
        rows = ((Value((1,), b"\x05"),), (Value((1,), b"\x06"),))
        answer = Answer(outputs=(Output("y", Datatype.UINT8),), rows=rows)
        body = adapter.render(parsed, answer, MODEL)
        length = int(dict(body.headers)["Inference-Header-Content-Length"])
        assert body.tail == (b"\x05", b"\x06"), "where they lie, not joined"
        assert len(body.data) == length
        assert orjson.loads(body.data)["outputs"][0]["shape"] == [2, 1]

    async def test_rows_of_differing_shapes_come_flat_with_their_shapes(self) -> None:
        adapter = V2Protocol()
        parsed = await adapter.parse(orjson.dumps(v2_body()), None, MODEL, 4096)
        rows = ((Value((1,), b"\x05"),), (Value((2,), b"\x06\x07"),))
        answer = Answer(outputs=(Output("y", Datatype.UINT8),), rows=rows)
        outputs = orjson.loads(adapter.render(parsed, answer, MODEL).data)["outputs"]
        assert [(o["name"], o["shape"], o["data"]) for o in outputs] == [
            ("y", [3], [5, 6, 7]),
            ("y:shapes", [2, 1], [1, 2]),
        ]

    def test_the_public_metadata_offers_text_and_hides_the_batch_extension(
        self, embedder: ReadyModel
    ) -> None:
        document = metadata(embedder)
        assert [entry["name"] for entry in document["inputs"]] == ["text", "input_ids"]
        assert "extensions" not in document

    @pytest.mark.slow
    @given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5)
                        | st.integers(-(2**63), 2**63 - 1),
                        lambda inner: st.lists(inner, max_size=4)
                        | st.dictionaries(st.sampled_from(["inputs", "name", "shape", "datatype",
                                                           "data", "parameters", "outputs"]),
                                          inner, max_size=6), max_leaves=20))  # fmt: skip
    async def test_any_json_gives_rows_or_a_named_mistake(self, document: Any) -> None:
        try:
            rows = await parsed_v2(document)
        except InvalidInput:
            return
        assert rows


class TestEmbeddings:
    async def test_every_form_of_input_is_taken(self, embedder: ReadyModel) -> None:
        assert await parsed_openai(embedder, input="one two") == [[1, 2]]
        assert await parsed_openai(embedder, input=["one", "two two"]) == [[1], [2, 2]]
        assert await parsed_openai(embedder, input=[1, 2]) == [[1, 2]]
        assert await parsed_openai(embedder, input=[[1], [2, 2]]) == [[1], [2, 2]]

    async def test_long_texts_are_truncated_and_long_token_lists_refused(
        self, embedder: ReadyModel
    ) -> None:
        assert await parsed_openai(embedder, input="one " * 9) == [[1, 1, 1, 1]]
        with pytest.raises(InvalidInput, match="holds 5 tokens; the model takes 4"):
            await parsed_openai(embedder, input=[1, 1, 1, 1, 1])

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ({}, "input: is required"),
            ({"input": 3}, "input: 3 is not a text"),
            ({"input": []}, "input: [] is not a text"),
            ({"input": ""}, "input[0]: is an empty text"),
            ({"input": ["one", 3]}, 'input[0]: "one" is not of the same kind'),
            ({"input": [[]]}, "input[0]: holds no token"),
            ({"input": "one", "encoding_format": "hex"}, 'encoding_format: "hex" is not one of'),
            ({"input": "one", "dimensions": 1}, "dimensions: 1 cannot be chosen"),
            ({"input": ["one"] * 2049}, "input: has 2049 entries; at most 2048 are taken"),
        ],
        ids=lambda value: value[:40] if isinstance(value, str) else "",
    )
    async def test_a_wrong_request_is_told_field_value_and_rule(
        self, embedder: ReadyModel, document: Any, message: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            await parsed_openai(embedder, **document)
        assert str(caught.value).startswith(message)

    async def test_what_is_no_name_of_a_model_is_not_found(self, embedder: ReadyModel) -> None:
        with pytest.raises(Rejected, match="7 is not served here") as caught:
            await parsed_openai(embedder, model=7, input="one")
        assert caught.value.status == 404

    async def test_another_name_may_be_an_adapters(self, embedder: ReadyModel) -> None:
        for name, found in (("sql", "sql"), ("m", None)):
            asked = orjson.dumps({"model": name, "input": "one"})
            assert (await EmbeddingsProtocol().parse(asked, None, embedder, 4096)).named == found

    @pytest.mark.parametrize("encoding", ["float", "base64"])
    async def test_vectors_come_in_the_asked_form(
        self, embedder: ReadyModel, encoding: str
    ) -> None:
        adapter = EmbeddingsProtocol()
        asked = {"model": "m", "input": ["one", "two"], "encoding_format": encoding}
        parsed = await adapter.parse(orjson.dumps(asked), None, embedder, 4096)
        vector = Value((2,), array("f", [1.0, 2.0]).tobytes())
        answer = Answer(outputs=(Output("embedding", Datatype.FP32),), rows=((vector,), (vector,)))
        body = orjson.loads(adapter.render(parsed, answer, embedder).data)
        expected = [1.0, 2.0] if encoding == "float" else "AACAPwAAAEA="
        assert [entry["embedding"] for entry in body["data"]] == [expected, expected]
        assert body["usage"] == {"prompt_tokens": 2, "total_tokens": 2}

    def test_errors_have_openais_form(self) -> None:
        body = EmbeddingsProtocol().error(CallError("no", status=400))
        error = orjson.loads(body.data)["error"]
        assert error == {
            "message": "no", "type": "invalid_request_error", "param": None, "code": None,
        }  # fmt: skip
