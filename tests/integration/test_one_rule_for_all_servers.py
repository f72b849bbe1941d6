"""What is odd about a request is judged alike, whichever server is behind the sidecar.

Before, our own server took the last of two values of a field, and others were sent both or neither;
an empty name was the model's where it had adapters; and a text's server of one's own was asked
whatever `seed` and `best_of` said.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.chain import Chain, in_front_of, running_chain
from support.engine_server import EngineServer
from support.raw_caller import RawCaller, request
from support.row_server import fronting

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
INFER: Final = "/v2/models/m/infer"
PREDICT: Final = "/v1/models/m:predict"
TEXTS: Final = ("ours", "texts of others")
TENSORS: Final = ("ours", "v2")
SIMULATED: Final = {"generates": "true", "stepSeconds": "0.001", "blocks": "256"}
SETTINGS: Final = BatchSettings(max_concurrent_requests=8)
Chains = dict[str, Chain]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chains(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chains]:
    """A sidecar in front of each kind of server, by its name here."""
    async with AsyncExitStack() as stack:
        folders = {name: tmp_path_factory.mktemp("kind") for name in ("ours", "texts of others")}
        ours = running_chain(folders["ours"], handler="simulated", parameters=SIMULATED)
        found = {"ours": await stack.enter_async_context(ours)}
        engine = await stack.enter_async_context(EngineServer())
        texts = in_front_of(
            engine.url,
            folders["texts of others"],
            upstream_protocol=ServerProtocol.OPENAI,
            settings=SETTINGS,
        )
        found["texts of others"] = await stack.enter_async_context(texts)
        for protocol in ServerProtocol:
            front = fronting(tmp_path_factory.mktemp("kind"), protocol)
            found[protocol.lower()] = (await stack.enter_async_context(front)).chain
        yield found


def chat(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "m", "messages": messages, "max_tokens": 2} | more


def infer(**more: Any) -> dict[str, Any]:
    x = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}
    return {"inputs": [x]} | more


async def asked(chain: Chain, path: str, document: Any) -> tuple[int, str]:
    """The status, and the text of the answer as a person reads it."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    async with chain.session.post(chain.url(path), data=body) as response:
        return response.status, (await response.text()).replace('\\"', '"')


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        *((kind, CHAT) for kind in TEXTS),
        *((kind, INFER) for kind in TENSORS),
        ("v1", PREDICT),
        ("openai", EMBEDDINGS),
    ],
)
@pytest.mark.parametrize("again", [b'"model":', b'"mod\\u0065l" :', b'"p": {"a": 1, "a":'])
async def test_a_field_that_is_named_twice_is_refused(
    chains: Chains, kind: str, path: str, again: bytes
) -> None:
    usual: dict[str, Any] = {
        CHAT: chat(),
        INFER: infer(model="m"),
        PREDICT: {"model": "m", "instances": [1]},
        EMBEDDINGS: {"model": "m", "input": "a"},
    }
    body = json.dumps(usual[path]).encode()
    end = b"}}" if again.count(b"{") else b"}"
    status, text = await asked(chains[kind], path, body[:-1] + b", " + again + b' "m"' + end)
    name = "a" if again.count(b"{") else "model"
    assert (status, f'body: "{name}" names a field twice' in text) == (400, True), text


@pytest.mark.parametrize("kind", TEXTS)
async def test_what_looks_like_a_field_within_a_text_is_none(chains: Chains, kind: str) -> None:
    content = '{"model": "a", "model": "b"} \\" ": '
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": ": a"}]
    messages.append({"role": "user", "content": "model"})
    status, text = await asked(chains[kind], CHAT, chat(messages=messages))
    assert status == 200, text


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        ({"seed": 2**64}, 400, "seed: "),
        ({"seed": 2**63}, 400, "seed: 9223372036854775808 is above"),
        ({"seed": -(2**63)}, 200, ""),
        ({"best_of": 2}, 400, "best_of: 2 is not n, which is 1"),
        ({"best_of": 2, "n": 2}, 200, ""),
        ({"best_of": 1}, 200, ""),
        ({"best_of": None}, 200, ""),
        ({"model": ""}, 404, 'model: "" is not served here'),
    ],
)
async def test_odd_fields_of_a_chat_have_one_rule(
    chains: Chains, kind: str, more: dict[str, Any], status: int, told: str
) -> None:
    got, text = await asked(chains[kind], CHAT, chat(**more))
    assert (got, told in text) == (status, True), text


@pytest.mark.parametrize("kind", TEXTS)
async def test_a_completion_of_no_model_or_of_too_large_a_seed_is_refused(
    chains: Chains, kind: str
) -> None:
    usual = {"model": "m", "prompt": "a", "max_tokens": 1}
    assert (await asked(chains[kind], COMPLETIONS, usual | {"model": ""}))[0] == 404
    assert (await asked(chains[kind], COMPLETIONS, usual | {"seed": 2**64}))[0] == 400


async def test_an_embedding_of_a_model_without_a_name_is_refused(chains: Chains) -> None:
    status, text = await asked(chains["openai"], EMBEDDINGS, {"model": "", "input": "a"})
    assert (status, 'model: "" is not served here' in text) == (404, True), text


@pytest.mark.parametrize("kind", TENSORS)
async def test_an_output_that_is_asked_for_twice_is_refused(chains: Chains, kind: str) -> None:
    body = infer(outputs=[{"name": "y"}, {"name": "y"}])
    status, text = await asked(chains[kind], INFER, body)
    assert (status, 'outputs[1].name: "y" is named twice' in text) == (400, True), text


@pytest.mark.parametrize("kind", ["ours", "texts of others", "v1", "v2", "openai"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v2"), ("GET", "/v1/models"), ("POST", INFER), ("POST", CHAT), ("POST", PREDICT)],
)
async def test_an_expectation_that_is_not_known_is_refused_whatever_is_asked(
    chains: Chains, kind: str, method: str, path: str
) -> None:
    body = b"{}" if method == "POST" else b""
    async with RawCaller.calling(chains[kind].port) as caller:
        caller.sends(request(path, body, "Expect: 200-ok", method=method))
        status, text = await caller.answer()
    assert (status, b"is not understood" in text) == (417, True), text
