"""What can be asked is what is said, and what is said is what the code takes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.discovery.discovery import Discovery
from batchedmodel_sidecar.discovery.example import Task, example_of, tasks_of
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.generation.native.requests import CHAT, COMPLETIONS, GENERATE
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import LinkStatus, ReadyModel
from batchedmodel_sidecar.protocols import headers
from batchedmodel_sidecar.protocols.openai import EMBEDDINGS
from batchedmodel_sidecar.protocols.routes import OF_MODEL, PATHS, Endpoint, RouteMatch, Routes
from batchedmodel_sidecar.protocols.scores import CLASSIFY, OF_COHERE, OF_TEI
from support.described_models import MODELS

ROUTES = Routes("m")
AWAY = LinkStatus(model=None, reason="model not ready: the model is LOADING")


def discovery() -> Discovery:
    return Discovery("m", ROUTES.find, ServedAdapters("m"), upstream=False)


def told(of: Discovery, endpoint: Endpoint, model: ReadyModel | None) -> Any:
    """The document, as a caller reads it."""
    status = LinkStatus(model=model, reason="") if model else AWAY
    return json.loads(b"".join(of.document(endpoint, status, works=True).parts))


def openapi(model: ReadyModel) -> Any:
    return told(discovery(), Endpoint.OPENAPI, model)


def schema(document: Any, path: str) -> OAS31Validator:
    """That of a request to a path."""
    (operation,) = document["paths"][path].values()
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    return OAS31Validator({**body, "components": document["components"]})


def methods_of(item: dict[str, Any]) -> list[str]:
    return [method for method in item if method in ("get", "post")]


@pytest.mark.parametrize("kind", MODELS)
def test_the_document_is_openapi(kind: str) -> None:
    OpenAPIV31SpecValidator(openapi(MODELS[kind])).validate()


def test_every_path_of_the_routes_is_described_and_no_other() -> None:
    """A route that is added without a description fails here."""
    described = set[tuple[str, str]]()
    for model in MODELS.values():
        for path, item in openapi(model)["paths"].items():
            described |= {(method.upper(), path) for method in methods_of(item)}
    table = {path: method for path, (method, _) in (PATHS | OF_MODEL).items()}
    named = {(method, path.format("m")) for path, method in table.items()}
    versions = {(table[path], path.format("m/versions/{version}")) for path in OF_MODEL}
    assert described == named | versions


@pytest.mark.parametrize("kind", MODELS)
def test_every_path_that_a_models_document_has_is_one_of_the_routes(kind: str) -> None:
    for path, item in openapi(MODELS[kind])["paths"].items():
        for method in methods_of(item):
            found = ROUTES.find(method.upper(), path.replace("{version}", "1"))
            assert isinstance(found, RouteMatch), (method, path)


@pytest.mark.parametrize(
    ("kind", "has", "lacks"),
    [
        ("chat", {"/v1/chat/completions", "/v1/embeddings"}, {"/classify", "/rerank"}),
        ("completions", {"/v2/models/m/generate"}, {"/v1/chat/completions", "/v1/embeddings"}),
        ("embeddings", {"/v1/embeddings"}, {"/v1/completions", "/predict"}),
        ("classification", {"/classify", "/predict"}, {"/v1/embeddings", "/rerank"}),
        ("ranking", {"/rerank", "/v1/rerank", "/v2/rerank"}, {"/classify"}),
        ("tensors", {"/v2/models/m/infer", "/v1/models/m:predict"}, {"/v1/embeddings"}),
    ],
)
def test_page_and_document_have_the_paths_of_the_models_kind(
    kind: str, has: set[str], lacks: set[str]
) -> None:
    page = told(discovery(), Endpoint.ABOUT, MODELS[kind])["paths"]
    on_page = {line.split()[1] for line in page}
    documented = openapi(MODELS[kind])["paths"].keys()
    assert has <= on_page <= documented
    assert not lacks & documented


@pytest.mark.parametrize("kind", MODELS)
def test_the_example_satisfies_the_schema_of_its_path(kind: str) -> None:
    model = MODELS[kind]
    example = example_of(model.description, model.generation)
    schema(openapi(model), example.path).validate(json.loads(json.dumps(example.body)))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"datatype": "FP64"},
        {"shape": [1, 1, 4]},
        {"shape": [1, 513, 4]},
        {"shape": [1, 3, 5]},
        {"shape": [1, 3]},
    ],
)
def test_tensors_that_the_model_does_not_take_are_not_those_of_the_schema(
    change: dict[str, Any],
) -> None:
    model = MODELS["tensors"]
    example = example_of(model.description, None)
    body = json.loads(json.dumps(example.body))
    validator = schema(openapi(model), example.path)
    assert validator.is_valid(body)
    body["inputs"][0] |= change
    assert not validator.is_valid(body)


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [
        ({"scale": 2, "way": "down", "timeout": 1000, "priority": 1}, True),
        ({"scale": None, "binary_data_output": True}, True),
        ({"scale": 2.5}, False),
        ({"way": "left"}, False),
        ({"speed": 1}, False),
    ],
)
def test_parameters_are_those_of_the_model(parameters: dict[str, Any], fits: bool) -> None:
    model = MODELS["tensors"]
    body = {**example_of(model.description, None).body, "parameters": parameters}
    sent = json.loads(json.dumps(body))
    assert schema(openapi(model), "/v2/models/m/infer").is_valid(sent) is fits


def test_bodies_have_the_fields_that_are_read() -> None:
    """A field that a protocol learns, or that the document makes up, fails here."""
    schemas = openapi(MODELS["chat"])["components"]["schemas"]
    fields = {name: set(one.get("properties", ())) for name, one in schemas.items()}
    assert fields["Chat"] == CHAT
    assert fields["Completions"] == COMPLETIONS
    assert fields["Generate"] == GENERATE
    assert fields["Embeddings"] == EMBEDDINGS
    assert fields["Classify"] == CLASSIFY
    tei, cohere = schemas["Rerank"]["oneOf"]
    assert set(tei["properties"]) == OF_TEI
    assert set(cohere["properties"]) == OF_COHERE


def test_headers_are_those_that_are_read() -> None:
    parameters = openapi(MODELS["chat"])["components"]["parameters"]
    assert {one["name"] for one in parameters.values() if one["in"] == "header"} == {
        headers.TIMEOUT_HEADER,
        headers.PRIORITY_HEADER,
        headers.GROUP_HEADER,
        headers.TIMING_HEADER,
        headers.REQUEST_ID_HEADER,
    }
    responses = openapi(MODELS["chat"])["components"]["responses"]
    for status in ("429", "503"):
        assert {"Retry-After", "retry-after-ms"} <= responses[status]["headers"].keys()


def test_the_page_of_a_model_that_is_not_there_says_so_and_the_document_waits() -> None:
    page = told(discovery(), Endpoint.ABOUT, None)
    assert page["ready"] is False
    assert page["reason"] == AWAY.reason
    assert "POST /v2/models/m/infer" in page["paths"]
    with pytest.raises(CallError) as refused:
        discovery().document(Endpoint.OPENAPI, AWAY, works=True)
    assert (refused.value.status, refused.value.message) == (503, AWAY.reason)
    assert refused.value.retry_after is not None


def test_a_page_is_made_once_for_each_model_and_state() -> None:
    of, model = discovery(), MODELS["embeddings"]
    status = LinkStatus(model=model, reason="")
    first = of.document(Endpoint.ABOUT, status, works=True)
    assert of.document(Endpoint.ABOUT, status, works=True) is first
    assert of.document(Endpoint.OPENAPI, status, works=True) is not first
    assert not told_ready(of, status, works=False)
    assert told_ready(of, status, works=True)
    other = replace(model, description=replace(model.description, embedding=None))
    assert told(of, Endpoint.ABOUT, other)["tasks"] == [Task.INFERENCE]


def told_ready(of: Discovery, status: LinkStatus, *, works: bool) -> bool:
    ready: bool = json.loads(b"".join(of.document(Endpoint.ABOUT, status, works=works).parts))[
        "ready"
    ]
    return ready


@pytest.mark.parametrize("protocol", ServerProtocol)
def test_in_front_of_a_server_of_ones_own_the_document_has_what_the_sidecar_answers(
    protocol: ServerProtocol,
) -> None:
    """Bodies are that server's to judge, and what is passed on is its own to describe."""
    routes = Upstream(protocol, "m")
    document = told(
        Discovery("m", routes.find, ServedAdapters("m"), upstream=True), Endpoint.OPENAPI, None
    )
    OpenAPIV31SpecValidator(document).validate()
    batched = {
        ServerProtocol.V2: "/v2/models/m/infer",
        ServerProtocol.V1: "/v1/models/m:predict",
        ServerProtocol.OPENAI: "/v1/embeddings",
    }
    assert {batched[protocol], "/v2/health/ready", "/openapi.json"} <= document["paths"].keys()
    assert "/" not in document["paths"]
    assert schema(document, batched[protocol]).is_valid({"anything": 1})


def test_the_tasks_of_the_models_are_all_there_are() -> None:
    firsts = {tasks_of(one.description, one.generation)[0] for one in MODELS.values()}
    assert firsts == set(Task)
