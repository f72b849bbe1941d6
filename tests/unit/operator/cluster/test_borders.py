"""Where the operator meets others: the API server's complaints, sidecars, its own settings."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.processes.environment import from_environment
from batchedmodel_contract.processes.sidecar_api import MODEL_HEADER, POD_HEADER
from batchedmodel_kube.admin_client import Whom
from batchedmodel_kube.manifest.spec import PullPolicy
from batchedmodel_operator.cluster.sidecars import SidecarAdmin
from batchedmodel_operator.interfaces import SidecarState
from batchedmodel_operator.settings import OperatorSettings

WHOM = Whom(model="minilm", pod="uid-1")
_NAMELESS: Mapping[str, str] = {}
"""What a sidecar of an earlier version says of itself."""


@contextmanager
def _server(
    status: int, body: bytes, path: str = "/settings", headers: Mapping[str, str] = _NAMELESS
) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == path else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"hash": "abc", "settings": {}}', "abc"),
        (503, b'{"hash": "abc"}', None),
        (200, b"no JSON", None),
        (200, b'{"other": 1}', None),
        (200, b'{"hash": 7}', None),
        (200, b"[" * 60_000, None),
        (200, json.dumps({"hash": "x" * 1000}).encode(), None),
    ],
)
async def test_what_a_sidecar_answers_is_a_hash_or_nothing(
    status: int, body: bytes, expected: str | None
) -> None:
    with _server(status, body) as port:
        state = await SidecarAdmin(port).state("127.0.0.1", WHOM)
    assert (state and state.settings_hash) == expected


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"hash": "abc", "link_version": 3}', 3),
        (200, b'{"hash": "abc"}', 0),
        (200, b'{"hash": "abc", "link_version": "3"}', 0),
        (200, b"[]", None),
        (503, b'{"hash": "abc", "link_version": 3}', None),
    ],
)
async def test_a_sidecar_that_tells_no_version_of_its_link_has_answered(
    status: int, body: bytes, expected: int | None
) -> None:
    with _server(status, body) as port:
        state = await SidecarAdmin(port).state("127.0.0.1", WHOM)
    assert (state and state.link_version) == expected


@pytest.mark.parametrize(
    ("model", "pod", "is_meant"),
    [
        ("minilm", "uid-1", True),
        ("minilm", "uid-2", False),
        ("other", "uid-2", False),
        ("other", "uid-1", False),
    ],
)
async def test_what_another_pod_says_at_the_address_is_dropped_and_logged(
    model: str, pod: str, is_meant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {MODEL_HEADER: model, POD_HEADER: pod}
    with _server(200, b'{"hash": "abc"}', "/settings", headers) as port:
        state = await SidecarAdmin(port).state("127.0.0.1", WHOM)
    assert (state is not None) is is_meant
    dropped = f"dropped: 127.0.0.1 is pod {pod} of model {model}, and not uid-1 of minilm"
    assert (dropped in caplog.text) is not is_meant


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("the model is FAILED: no file\n", "the model is FAILED: no file"),
        ("x" * 100_000, "x" * 2048),
        (7, None),
    ],
)
async def test_what_a_sidecar_says_of_a_start_is_a_text_within_bounds(
    said: object, expected: str | None
) -> None:
    state = await _said({"startup": said})
    assert state.startup == expected


async def test_a_sidecar_of_an_earlier_release_is_asked_at_each_path() -> None:
    bodies = {
        "/settings": {"hash": "abc"},
        "/adapters": {"adapters": [_adapter()]},
    }

    class Earlier(SidecarAdmin):
        async def _get(self, address: str, path: str, whom: Whom) -> tuple[int | None, bytes]:
            if path == "/model/startup":
                return 503, b"the model is LOADING\n"
            return 200, json.dumps(bodies[path]).encode()

    state = await Earlier().state("127.0.0.1", WHOM)
    assert state is not None
    assert (state.settings_hash, state.startup) == ("abc", "the model is LOADING")
    assert [one.name for one in state.adapters or ()] == ["sql"]


async def _said(document: Mapping[str, object]) -> SidecarState:
    body = json.dumps({"hash": "abc", "startup": "ready", **document}).encode()
    with _server(200, body) as port:
        state = await SidecarAdmin(port).state("127.0.0.1", WHOM)
    assert state is not None
    return state


def _adapter(**other: object) -> dict[str, object]:
    return {"name": "sql", "number": 1, "phase": "READY", **other}


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ({"adapters": []}, []),
        ({"adapters": [_adapter(), _adapter(name="chat", phase="FAILED")]}, ["sql", "chat"]),
        ({"adapters": [_adapter(name="x" * 64), _adapter()]}, ["sql"]),
        ({"adapters": [_adapter(number=one) for one in range(1, 1000)]}, ["sql"] * 512),
        ({"adapters": [_adapter(phase="HAPPY")]}, None),
        ({"adapters": [_adapter(number=-1)]}, None),
        ({"adapters": 7}, None),
        ({}, None),
    ],
)
async def test_what_a_sidecar_says_of_adapters_is_a_bounded_list_or_nothing(
    told: Mapping[str, object], names: list[str] | None
) -> None:
    found = (await _said(told)).adapters
    assert (None if found is None else [state.name for state in found]) == names


async def test_the_reason_of_an_adapter_is_one_line_and_short() -> None:
    told = {"adapters": [_adapter(phase="FAILED", reason="a\nb" * 1000)]}
    found = (await _said(told)).adapters
    assert found is not None
    assert len(found[0].reason) == 256
    assert found[0].reason.startswith("a?ba?b")


def test_who_answers_in_the_place_of_a_pod_is_named_in_one_line() -> None:
    names = {MODEL_HEADER: "x\nERROR other/model\x1b[2J", POD_HEADER: "\u2028"}
    other = WHOM.other(names.get)
    assert other is not None
    assert other.isprintable()


async def test_where_nobody_listens_there_is_no_answer() -> None:
    with _server(200, b"") as port:
        pass
    sidecars = SidecarAdmin(port)
    assert await sidecars.state("127.0.0.1", WHOM) is None


def test_the_settings_name_what_is_missing_or_wrong() -> None:
    with pytest.raises(InvalidManifest) as caught:
        from_environment(OperatorSettings, {"BATCHEDMODEL_IMAGE_PULL_POLICY": "Sometimes"})
    assert [mistake.field for mistake in caught.value.mistakes] == [
        "BATCHEDMODEL_SIDECAR_IMAGE",
        "BATCHEDMODEL_MODEL_SERVER_IMAGE",
        "BATCHEDMODEL_NAMESPACE",
        "BATCHEDMODEL_IMAGE_PULL_POLICY",
    ]


def test_images_and_a_namespace_are_enough_settings() -> None:
    told = {
        "BATCHEDMODEL_SIDECAR_IMAGE": "a:1",
        "BATCHEDMODEL_MODEL_SERVER_IMAGE": "b:1",
        "BATCHEDMODEL_NAMESPACE": "system",
    }
    settings = from_environment(OperatorSettings, told)
    assert settings.lease_name == "batchedmodel-operator"
    assert settings.image_pull_policy is PullPolicy.IF_NOT_PRESENT
    assert settings.probe_port == 8080


@pytest.mark.slow
async def test_a_sidecar_that_answers_byte_by_byte_has_one_deadline_for_all_of_it() -> None:
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        try:
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        except OSError:
            pass
        finally:
            writer.close()
            ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        sidecars = SidecarAdmin(server.sockets[0].getsockname()[1])
        assert await sidecars.state("127.0.0.1", WHOM) is None
        await ended.wait()
