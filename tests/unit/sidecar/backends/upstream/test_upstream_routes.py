"""Which paths are passed on to a server of one's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute, RouteMatch

V2 = Upstream(ServerProtocol.V2, "m")
V1 = Upstream(ServerProtocol.V1, "m")
OPENAI = Upstream(ServerProtocol.OPENAI, "m")
NAMED = Upstream(ServerProtocol.V2, "m", pass_paths=("/v2/logging", "/v2/r.s/*"))
PASSED_ON = RouteMatch(Endpoint.PASSED_ON)


@pytest.mark.parametrize(
    ("routes", "method", "path"),
    [
        (V2, "POST", "/v2/models/other/versions/1/generate"),
        (V2, "HEAD", "/v2/models/m/config"),
        (V1, "GET", "/v1/models/m/metadata"),
        (V1, "GET", "/"),
        (OPENAI, "POST", "/v1/responses"),
        (OPENAI, "POST", "/tokenize"),
        (OPENAI, "GET", "/v1/models"),
        (OPENAI, "GET", "/v1/models/org/llama:8b"),
        (NAMED, "DELETE", "/v2/logging"),
        (NAMED, "POST", "/v2/r.s/a/b"),
    ],
)
def test_a_path_is_passed_on(routes: Upstream, method: str, path: str) -> None:
    assert routes.find(method, path) == PASSED_ON


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_generated_text_waits_for_its_turn(path: str) -> None:
    assert OPENAI.find("POST", path) == RouteMatch(Endpoint.GENERATES)
    found = OPENAI.find("GET", path)
    assert isinstance(found, NoRoute)
    assert found.allow == "POST"


@pytest.mark.parametrize(
    ("routes", "path"),
    [
        (V2, "/v2/models/other/infer"),
        (V1, "/v1/models/m/labels/stable:predict"),
        (V1, "/v1/models/other:explain"),
        (OPENAI, "/rerank"),
        (OPENAI, "/v1/score"),
        (
            Upstream(ServerProtocol.V1, "m", pass_paths=("/*",)),
            "/v1/models/m:explain",
        ),
    ],
)
def test_an_inference_beside_the_batched_one_goes_in_its_turn(routes: Upstream, path: str) -> None:
    assert routes.find("POST", path) == RouteMatch(Endpoint.ALONE)


@pytest.mark.parametrize(
    ("routes", "method", "path", "status"),
    [
        (V2, "POST", "/v1/chat/completions", 404),
        (V2, "POST", "/v2/models/m/versions/1/load", 404),
        (V1, "POST", "/v1/models/m:load", 404),
        (V1, "DELETE", "/v1/models/m", 405),
        (OPENAI, "DELETE", "/v1/models/org/name", 405),
        (OPENAI, "POST", "/v1/load_lora_adapter", 404),
        (OPENAI, "GET", "/v1/responses/1", 404),
        (OPENAI, "POST", "/sleep", 404),
        (OPENAI, "GET", "/v1/models/org%2Fname", 404),
        (NAMED, "GET", "/v2/rxs/a", 404),
        (NAMED, "GET", "/v2/r.s/", 404),
        (NAMED, "GET", "/v2/r.s", 404),
    ],
)
def test_a_path_is_not_passed_on(routes: Upstream, method: str, path: str, status: int) -> None:
    lost = routes.find(method, path)
    assert isinstance(lost, NoRoute)
    assert lost.status == status


parts = st.sampled_from(
    ["v2", "models", "m", "infer", "r.s", "..", ".", "", "%2e%2e", "a%2Fb", "..;", "a;b", "\\", "#"]
)


@given(st.lists(parts, max_size=6).map(lambda found: "/" + "/".join(found)))
def test_whatever_is_passed_on_means_the_same_to_every_server(path: str) -> None:
    everything = Upstream(ServerProtocol.V2, "m", pass_paths=("/*",))
    if path != "/" and not isinstance(everything.find("POST", path), NoRoute):
        assert all(part.strip(".") for part in path[1:].split("/"))
        assert not set(path) & set("%;\\#")
