"""When a server that speaks OpenAI's API is ready, by what it answers at two pages."""

import pytest

from batchedmodel_sidecar.backends.upstream.protocol import NotReady
from batchedmodel_sidecar.backends.upstream.protocols.openai import OpenAI


async def asked(models: int, health: int) -> list[str]:
    """The pages that it was asked for; raises `NotReady`."""
    paths: list[str] = []

    async def ask(path: str) -> tuple[int, bytes]:
        paths.append(path)
        return (models if path == "/v1/models" else health), b""

    await OpenAI("m").check_ready(ask)
    return paths


@pytest.mark.parametrize("status", [200, 401, 403])
async def test_one_that_lists_its_models_or_wants_a_key_for_it_is_asked_nothing_more(
    status: int,
) -> None:
    assert await asked(status, 500) == ["/v1/models"]


@pytest.mark.parametrize("status", [404, 500, 502])
async def test_one_without_a_list_is_ready_when_its_health_page_says_so(status: int) -> None:
    assert await asked(status, 200) == ["/v1/models", "/health"]


@pytest.mark.parametrize(
    ("models", "health", "told"),
    [
        (503, 200, "503"),
        (500, 500, "500"),
        (500, 404, "500"),
        (502, 503, "502"),
        (404, 503, "503"),
        (404, 404, "404 at /v1/models and at /health"),
    ],
)
async def test_one_that_fails_or_says_that_it_is_unavailable_is_not_ready(
    models: int, health: int, told: str
) -> None:
    with pytest.raises(NotReady, match=told):
        await asked(models, health)
