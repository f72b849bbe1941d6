"""Which path means what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_sidecar.protocols.routes import Endpoint, NoRoute, RouteMatch, Routes

ROUTES = Routes("m")


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/v2/models/m/infer", RouteMatch(Endpoint.V2_INFER)),
        ("POST", "/v2/models/m/versions/7/infer", RouteMatch(Endpoint.V2_INFER, "7")),
        ("GET", "/v2/models/m", RouteMatch(Endpoint.V2_MODEL)),
        ("GET", "/v2/models/m/versions/7", RouteMatch(Endpoint.V2_MODEL, "7")),
        ("HEAD", "/v2/models/m/versions/a.b/ready", RouteMatch(Endpoint.MODEL_READY, "a.b")),
        ("POST", "/v1/models/m:predict", RouteMatch(Endpoint.V1_PREDICT)),
        ("POST", "/v1/models/m/versions/7:predict", RouteMatch(Endpoint.V1_PREDICT, "7")),
        ("GET", "/v1/models/m", RouteMatch(Endpoint.MODEL)),
        ("GET", "/v1/models", RouteMatch(Endpoint.MODELS)),
        ("HEAD", "/v2/health/live", RouteMatch(Endpoint.LIVE)),
        ("POST", "/v2/rerank", RouteMatch(Endpoint.RERANK)),
    ],
)
def test_a_path_is_found(method: str, path: str, found: RouteMatch) -> None:
    assert ROUTES.find(method, path) == found


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/v2/models/sql/infer", RouteMatch(Endpoint.V2_INFER, None, "sql")),
        ("POST", "/v2/models/sql/versions/7/infer", RouteMatch(Endpoint.V2_INFER, "7", "sql")),
        ("POST", "/v2/models/sql/generate_stream", RouteMatch(Endpoint.GENERATES, None, "sql")),
        ("POST", "/v1/models/a.b:predict", RouteMatch(Endpoint.V1_PREDICT, None, "a.b")),
        ("GET", "/v1/models/sql", RouteMatch(Endpoint.MODEL, None, "sql")),
        ("GET", "/v2/models/m", RouteMatch(Endpoint.V2_MODEL)),
        ("GET", "/v1/models", RouteMatch(Endpoint.MODELS)),
    ],
)
def test_in_front_of_a_model_with_adapters_a_path_may_name_one(
    method: str, path: str, found: RouteMatch
) -> None:
    routes = Routes("m", adapters=True)
    assert routes.find(method, path) == found
    assert isinstance(routes.find(method, f"{path}/mo/re"), NoRoute)


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "//", 404, 'there is nothing at "//"'),
        ("POST", "/", 405, "/ takes GET, not POST"),
        ("GET", "/v2/models", 404, "there is nothing at"),
        ("GET", "/v2/models/m/versions", 404, "there is nothing at"),
        ("GET", "/v2/models/m/versions/", 404, "there is nothing at"),
        ("GET", "/v2/models/m/versions/7/more", 404, "there is nothing at"),
        ("GET", "/v2/models/m/versions/7/versions/8", 404, "there is nothing at"),
        ("GET", "/v2/models/mm", 404, 'model: "mm" is not served here; m is'),
        ("POST", "/v1/models/x:predict", 404, 'model: "x" is not served here; m is'),
        ("POST", "/v2/models/x/versions/1/infer", 404, 'model: "x" is not served here; m is'),
    ],
)
def test_a_path_that_means_nothing_says_so(
    method: str, path: str, status: int, message: str
) -> None:
    lost = ROUTES.find(method, path)
    assert isinstance(lost, NoRoute)
    assert lost.status == status
    assert lost.message.startswith(message)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v2/models/m/infer", "POST"),
        ("HEAD", "/v1/embeddings", "POST"),
        ("POST", "/v2/models/m/versions/1", "GET"),
        ("DELETE", "/v1/models", "GET"),
    ],
)
def test_a_wrong_method_is_told_the_right_one(method: str, path: str, allow: str) -> None:
    lost = ROUTES.find(method, path)
    assert isinstance(lost, NoRoute)
    assert (lost.status, lost.allow) == (405, allow)


@given(st.text(max_size=20), st.text(max_size=60))
def test_any_path_is_found_or_lost(method: str, path: str) -> None:
    for one in (path, f"/v2/models/m/versions/{path}", f"/v1/models/{path}"):
        found = ROUTES.find(method, one)
        if isinstance(found, NoRoute):
            found.message.encode(errors="strict")
