"""Texts through both processes: embeddings, classes and ranks in every form that callers use."""

import base64
import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.chain import Chain, running_chain

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLERS = ("Embedder", "Classifier", "Tagger", "Ranker")
Chains = dict[str, Chain]
LONG = "good " * 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chains(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chains]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                running_chain(
                    tmp_path_factory.mktemp(name), handler=f"support.text_handlers:{name}"
                )
            )
            for name in HANDLERS
        }


async def ask(chain: Chain, path: str, document: Any) -> tuple[int, Any]:
    async with chain.session.post(chain.url(path), json=document) as response:
        return response.status, json.loads(await response.read())


async def embeddings(chains: Chains, **document: Any) -> list[Any]:
    document = {"model": "m"} | document
    status, answer = await ask(chains["Embedder"], "/v1/embeddings", document)
    assert status == 200, answer
    return [one["embedding"] for one in answer["data"]]


async def test_embeddings_may_be_cut_and_have_length_one_again(chains: Chains) -> None:
    text = "good good good bad bad bad bad cat"
    assert await embeddings(chains, input=text) == [[3.0, 4.0, 0.0, 1.0]]
    whole = math.sqrt(26)
    (cut,) = await embeddings(chains, input=text, dimensions=4)
    assert cut == pytest.approx([3 / whole, 4 / whole, 0, 1 / whole])
    (cut,) = await embeddings(chains, input=text, dimensions=2)
    assert cut == pytest.approx([0.6, 0.8])
    (encoded,) = await embeddings(chains, input=text, dimensions=2, encoding_format="base64")
    assert list(struct.unpack("<2f", base64.b64decode(encoded))) == cut
    assert await embeddings(chains, input="dog", dimensions=2) == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (1, "1 is below the minimum 2"),
        (5, "5 is above the maximum 4"),
        ("2", '"2" is not an integer'),
        (2.0, "2.0 is not an integer"),
    ],
)
async def test_dimensions_that_the_model_does_not_have_are_refused(
    chains: Chains, given: Any, rule: str
) -> None:
    document = {"model": "m", "input": "good", "dimensions": given}
    status, answer = await ask(chains["Embedder"], "/v1/embeddings", document)
    assert status == 400
    assert answer["error"]["message"] == f"dimensions: {rule}"
    assert answer["error"]["param"] == "dimensions"


@pytest.mark.parametrize(
    ("handler", "path", "document", "message"),
    [
        ("Ranker", "/v1/embeddings", {"model": "m", "input": "a"}, "does not give embeddings"),
        ("Embedder", "/classify", {"inputs": "a"}, "does not classify"),
        ("Embedder", "/rerank", {"query": "a", "texts": ["b"]}, "does not rank"),
    ],
)
async def test_what_a_model_cannot_do_is_said(
    chains: Chains, handler: str, path: str, document: Any, message: str
) -> None:
    status, answer = await ask(chains[handler], path, document)
    assert status == 400
    assert f'model: "m" {message}' in json.dumps(answer["error"]).replace("\\", "")


def softmax(*scores: float) -> list[float]:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


async def test_classes_come_likeliest_first_in_teis_form(chains: Chains) -> None:
    good, bad, odd = softmax(2, 0, 1)
    one = {"inputs": "good good odd"}
    for path in ("/predict", "/classify"):
        status, answer = await ask(chains["Classifier"], path, one)
        assert status == 200
        assert [it["label"] for it in answer] == ["good", "odd", "bad"]
        assert [it["score"] for it in answer] == pytest.approx([good, odd, bad])
    status, answer = await ask(chains["Classifier"], "/predict", one | {"raw_scores": True})
    assert [it["score"] for it in answer] == [2.0, 1.0, 0.0]
    # A list of two texts is a pair, as to TEI; lists in a list are several.
    _, pair = await ask(chains["Classifier"], "/predict", {"inputs": ["good", "good odd"]})
    assert pair[0]["score"] == pytest.approx(good)
    _, several = await ask(chains["Classifier"], "/predict", {"inputs": [["bad"], ["odd", "odd"]]})
    assert [it[0]["label"] for it in several] == ["bad", "odd"]


async def test_classes_come_in_the_order_of_labels_in_vllms_form(chains: Chains) -> None:
    document = {"model": "m", "input": ["good good odd", "bad"]}
    status, answer = await ask(chains["Classifier"], "/classify", document)
    assert status == 200
    first, second = answer["data"]
    assert (first["label"], second["label"]) == ("good", "bad")
    assert first["probs"] == pytest.approx(softmax(2, 0, 1))
    assert (first["num_classes"], second["index"]) == (3, 1)
    assert answer["usage"]["prompt_tokens"] == 8


async def test_tokens_are_classified_with_their_places_in_the_text(chains: Chains) -> None:
    chain, likely = chains["Tagger"], softmax(1, 0, 0)[0]
    good = {"entity": "good", "score": pytest.approx(likely), "index": 3, "word": "good"}
    odd = {"entity": "odd", "score": pytest.approx(likely), "index": 1, "word": "odd"}
    for path in ("/classify", "/predict"):
        status, answer = await ask(chain, path, {"inputs": "odd cat  good"})
        assert status == 200
        assert answer[0] == odd | {"start": 0, "end": 3}
        # The likeliest of three that are equally likely is the first.
        assert (answer[1]["word"], answer[1]["entity"]) == ("cat", "good")
        assert answer[2] == good | {"start": 9, "end": 13}
    _, several = await ask(chain, "/classify", {"inputs": [["odd"], ["odd odd"]]})
    assert [[it["start"] for it in text] for text in several] == [[0], [0, 4]]
    _, raw = await ask(chain, "/classify", {"inputs": "odd", "raw_scores": True})
    assert raw == [odd | {"score": 1.0, "start": 0, "end": 3}]
    _, cut = await ask(chain, "/classify", {"inputs": LONG})
    assert len(cut) == 14


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"input": "a"}, "input: is for models that classify texts; this one classifies tokens"),
        ({"inputs": ["a", "b"]}, 'inputs: ["a", "b"] is a pair of texts, whose tokens this model'),
        ({"inputs": LONG, "truncate": False}, "text 0: is longer than the 16 tokens"),
    ],
)
async def test_tokens_that_cannot_be_classified_are_refused(
    chains: Chains, document: Any, message: str
) -> None:
    status, answer = await ask(chains["Tagger"], "/classify", document)
    assert status == 400
    assert answer["error"].startswith(message)


async def test_tokens_are_classified_over_v2_with_labels_in_the_metadata(chains: Chains) -> None:
    chain = chains["Tagger"]
    async with chain.session.get(chain.url("/v2/models/m")) as response:
        told = (await response.json())["batchedmodel"]["classification"]
    assert told == {"output": "scores", "labels": ["good", "bad", "odd"], "activation": "Softmax"}
    entry = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["odd cat good"]}
    status, answer = await ask(chain, chain.infer_path, {"inputs": [entry]})
    assert status == 200
    (output,) = answer["outputs"]
    assert output["shape"] == [1, 5, 3]
    assert output["data"] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]


DOCUMENTS = ["dog", "good", "cat dog"]


async def test_ranks_in_teis_form(chains: Chains) -> None:
    document = {"query": "cat dog", "texts": DOCUMENTS}
    status, answer = await ask(chains["Ranker"], "/rerank", document)
    assert status == 200
    assert [it["index"] for it in answer] == [2, 0, 1]
    assert [it["score"] for it in answer] == pytest.approx([1 / (1 + math.exp(-2)), 0.731059, 0.5])
    more = {"raw_scores": True, "return_text": True}
    _, answer = await ask(chains["Ranker"], "/rerank", document | more)
    assert answer[0] == {"index": 2, "score": 2.0, "text": "cat dog"}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_ranks_in_the_form_of_cohere_and_jina(chains: Chains, path: str) -> None:
    documents = [*DOCUMENTS[:2], {"text": DOCUMENTS[2]}]
    document = {"model": "m", "query": "cat dog", "documents": documents, "top_n": 2}
    status, answer = await ask(chains["Ranker"], path, document)
    assert status == 200
    assert [it["index"] for it in answer["results"]] == [2, 0]
    assert "document" not in answer["results"][0]
    _, answer = await ask(chains["Ranker"], path, document | {"return_documents": True})
    assert [it["document"] for it in answer["results"]] == [{"text": "cat dog"}, {"text": "dog"}]


@pytest.mark.parametrize(
    ("handler", "document", "message"),
    [
        ("Classifier", {}, "inputs: or input is required, and not both"),
        ("Classifier", {"inputs": "a", "input": "b"}, "inputs: or input is required, and not"),
        ("Classifier", {"inputs": []}, "inputs: [] is not a text or a pair of texts"),
        ("Classifier", {"inputs": ["a", "b", "c"]}, "inputs: "),
        ("Classifier", {"inputs": [["a"], [3]]}, "inputs[1]: [3] is not a text or a pair of texts"),
        ("Classifier", {"input": [3]}, "input: [3] is not a text or a list of texts"),
        ("Classifier", {"inputs": "a", "top_k": 2}, "top_k: is not taken here"),
        ("Classifier", {"inputs": "a", "raw_scores": 1}, "raw_scores: 1 is not true or false"),
        ("Classifier", {"inputs": LONG, "truncate": False}, "text 0: is longer than the 16 tokens"),
        ("Ranker", {"texts": ["a"]}, "query: null is not a text"),
        ("Ranker", {"query": "a"}, "documents: null must be a list of at least one text"),
        ("Ranker", {"query": "a", "texts": []}, "texts: [] must be a list of at least one text"),
        ("Ranker", {"query": "a", "texts": ["b", 3]}, "texts[1]: 3 is not a text"),
        ("Ranker", {"query": "a", "texts": ["b"], "top_n": 1}, "top_n: is not taken beside texts"),
        ("Ranker", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n: 0 is below the minimum"),
        ("Ranker", {"query": "a", "texts": ["b"] * 2049}, "texts: has 2049 entries; at most 2048"),
        (
            "Ranker",
            {"query": "a", "texts": ["b"], "truncation_direction": "left"},
            'truncation_direction: "left" is not right',
        ),
    ],
)
async def test_a_wrong_question_is_told_field_value_and_rule(
    chains: Chains, handler: str, document: Any, message: str
) -> None:
    path = {"Classifier": "/classify", "Ranker": "/rerank"}[handler]
    status, answer = await ask(chains[handler], path, document)
    assert status == 400
    assert answer["error"].startswith(message)
    assert answer["message"] == answer["error"]
    assert answer["error_type"] == "Validation"


async def test_long_texts_are_cut_unless_they_must_stay_whole(chains: Chains) -> None:
    for more in ({}, {"truncate": True}):
        _, answer = await ask(chains["Classifier"], "/predict", {"inputs": LONG} | more)
        assert answer[0]["label"] == "good"
    status, _ = await ask(chains["Classifier"], "/predict", {"inputs": "a", "truncate": False})
    assert status == 200


async def test_another_models_name_is_not_found(chains: Chains) -> None:
    document = {"model": "other", "query": "a", "documents": ["b"]}
    status, answer = await ask(chains["Ranker"], "/rerank", document)
    assert (status, answer["error"]) == (404, 'model: "other" is not served here; m is')


async def test_v1_takes_texts_for_a_model_of_texts(chains: Chains) -> None:
    document = {"instances": ["good", {"text": "bad cat"}]}
    status, answer = await ask(chains["Embedder"], "/v1/models/m:predict", document)
    assert (status, answer) == (200, {"predictions": [[1, 0, 0, 0], [0, 1, 0, 1]]})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "instances: must be a list of at least one instance"),
        ({"instances": []}, "instances: must be a list of at least one instance"),
        ({"instances": [[1]], "parameters": {}}, "parameters: is not taken here"),
        ({"inputs": {"ids": [1]}}, "inputs: is not taken here"),
        ({"instances": ["a", 3]}, "instances[0].ids: has a value that is not a INT64"),
        ({"instances": [{"x": [1]}]}, 'instances[0]: "x" is not an input of this model'),
        ({"instances": [[1.5]]}, "instances[0].ids: has a value that is not a INT64"),
        ({"instances": [[]]}, "instances[0].ids.shape: [1, 0] has rows of size zero"),
        ({"instances": [[[1]]]}, "instances[0].ids.shape: [1, 1, 1] does not fit [-1, -1]"),
        ({"instances": [[1] * 17]}, "instances[0].ids.shape: [1, 17] is longer than the model"),
    ],
)
async def test_a_wrong_instance_is_told_field_value_and_rule(
    chains: Chains, document: Any, message: str
) -> None:
    status, answer = await ask(chains["Embedder"], "/v1/models/m:predict", document)
    assert status == 400
    assert answer["error"].startswith(message)


async def test_instances_may_differ_in_length(chains: Chains) -> None:
    document = {"instances": [[3], [3, 3, 4], {"ids": [5]}]}
    status, answer = await ask(chains["Embedder"], "/v1/models/m:predict", document)
    assert (status, answer) == (
        200,
        {"predictions": [[1, 0, 0, 0], [2, 1, 0, 0], [0, 0, 1, 0]]},
    )


async def test_models_are_listed_for_clients_of_openai_and_of_kserve(chains: Chains) -> None:
    chain = chains["Embedder"]
    async with chain.session.get(chain.url("/v1/models")) as response:
        listed = await response.json()
    assert listed["models"] == ["m"]
    assert [one["id"] for one in listed["data"]] == ["m"]
    async with chain.session.get(chain.url("/v1/models/m")) as response:
        one = await response.json()
    assert (one["id"], one["object"], one["name"], one["ready"]) == ("m", "model", "m", True)
    for path, method in (("/v1/models/x", "GET"), ("/v1/models/x:predict", "POST")):
        async with chain.session.request(method, chain.url(path)) as response:
            assert response.status == 404


async def test_v1_answers_503_while_there_is_no_model(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="none", start_model=False) as chain:
        status, answer = await ask(chain, "/v1/models/m:predict", {"instances": ["a"]})
        assert status == 503
        assert "model" in answer["error"]
        async with chain.session.get(chain.url("/v1/models/m")) as response:
            assert response.status == 503
