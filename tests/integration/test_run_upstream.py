"""`batchedmodel run FILE --upstream URL`: the batching in front of a server that runs already."""

import asyncio
import os
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from cluster.certificates import Authority
from support.row_server import NAME, RowServer

MANIFEST = f"""
apiVersion: batchedmodel.dev/v1alpha1
kind: BatchedModel
metadata: {{name: {NAME}}}
spec:
  model: {{protocol: %s, image: own:1}}
  batching: {{policy: Window, maxWaitMilliseconds: 100}}
"""


@asynccontextmanager
async def command(
    folder: Path, protocol: str, url: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process; it is ended with the context."""
    (folder / "model.yaml").write_text(MANIFEST % protocol)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batchedmodel_cli", "run", str(folder / "model.yaml")),
        *("--port", "0", "--upstream", url),
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def until(process: asyncio.subprocess.Process, pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(60.0):
        async for line in process.stdout:
            lines.append(line.decode())
            if found := re.search(pattern, lines[-1]):
                return found
    raise AssertionError("".join(lines))


@pytest.mark.parametrize(
    ("protocol", "path", "body", "rows"),
    [
        ("V1", "/v1/models/m:predict", {"instances": [1, 2]}, "predictions"),
        ("OpenAI", "/v1/embeddings", {"model": "m", "input": ["a", "b"]}, "data"),
        (
            "V2",
            "/v2/models/m/infer",
            {"inputs": [{"name": "x", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}]},
            "outputs",
        ),
    ],
)
async def test_the_manifests_protocol_decides_and_no_model_server_is_started(
    tmp_path: Path, protocol: str, path: str, body: object, rows: str
) -> None:
    async with (
        RowServer() as server,
        aiohttp.ClientSession() as session,
        command(tmp_path, protocol, server.url) as process,
    ):
        service = (await until(process, r"service +(http://\S+)"))[1]
        responses = await asyncio.gather(
            *(session.post(service + path, json=body) for _ in range(4))
        )
        for response in responses:
            assert response.status == 200
            assert rows in await response.json()
        # Until an output of v2 was as long as the rows of two unlike numbers of them, a batch is
        # cut in halves down to the rows of one request.
        assert server.rows == ([2, 2, 4] if protocol == "V2" else [8])
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = (await process.stdout.read()).decode()
        assert "model  " not in rest
        assert await process.wait() == 0


async def test_a_server_that_is_not_there_yet_is_waited_for_and_said_so(tmp_path: Path) -> None:
    async with RowServer() as server:
        pass  # only for a port that nobody has now
    async with command(tmp_path, "V1", server.url) as process:
        await until(process, "model not ready: the model cannot be reached")
        async with server:
            await until(process, "m is ready")


def shown(authority: Authority, address: str) -> ssl.SSLContext:
    """What a server shows of itself that has this address."""
    pair = authority.issue("server", common_name="server", addresses=[address])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def test_a_server_with_a_certificate_is_asked_if_its_authority_is_trusted(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path, "authority")
    trusted = {"SSL_CERT_FILE": str(authority.certificate)}
    async with (
        RowServer(tls=shown(authority, "127.0.0.1")) as server,
        aiohttp.ClientSession() as session,
        command(tmp_path, "V1", server.url, **trusted) as process,
    ):
        service = (await until(process, r"service +(http://\S+)"))[1]
        async with session.post(f"{service}/v1/models/m:predict", json={"instances": [1]}) as told:
            assert told.status == 200
            assert len((await told.json())["predictions"]) == 1
        async with session.get(f"{service}/v1/models") as passed_on:
            assert await passed_on.json() == {"object": "list", "data": []}


@pytest.mark.parametrize(("trusts", "address"), [(False, "127.0.0.1"), (True, "127.0.0.2")])
async def test_a_server_whose_certificate_proves_nothing_is_sent_nothing(
    tmp_path: Path, trusts: bool, address: str
) -> None:
    authority = Authority(tmp_path, "authority")
    variables = {"SSL_CERT_FILE": str(authority.certificate)} if trusts else {}
    async with (
        RowServer(tls=shown(authority, address)) as server,
        command(tmp_path, "V1", server.url, **variables) as process,
    ):
        await until(process, "model not ready: the model's certificate is not trusted: .*certif")
        assert not server.bodies


async def test_a_run_answers_no_page_of_another_site(tmp_path: Path) -> None:
    """A page in a browser of this machine could ask the model, and read its answers by a name that
    was made to mean 127.0.0.1."""
    body = {"instances": [1]}
    async with (
        RowServer() as server,
        aiohttp.ClientSession() as session,
        command(tmp_path, "V1", server.url) as process,
    ):
        admin = (await until(process, r"admin port (\d+)"))[1]
        service = (await until(process, r"service +(http://\S+)"))[1]
        asked: list[tuple[dict[str, str], int, str]] = [
            ({}, 200, ""),
            ({"Origin": service}, 200, ""),
            ({"Origin": "http://evil.example"}, 403, 'Origin: "http://evil.example" is not'),
            ({"Host": "rebound.example"}, 403, 'Host: "rebound.example" is neither'),
        ]
        for headers, status, told in asked:
            path = f"{service}/v1/models/m:predict"
            async with session.post(path, json=body, headers=headers) as response:
                assert response.status == status
                assert status == 200 or (await response.json())["error"].startswith(told)
            for address in (f"{service}/v1/models/m", f"http://127.0.0.1:{admin}/metrics"):
                same = {} if headers.get("Origin") == service else headers
                async with session.get(address, headers=same) as response:
                    assert response.status == status
        assert sum(server.rows) == 2
