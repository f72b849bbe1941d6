"""Clients of others, unchanged, each in an environment of its own, against real processes."""

import asyncio
from pathlib import Path

from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.outcomes import Outcome
from support.books import assert_books_balance, settled
from support.chain import in_front_of, running_chain
from support.echo_server import EVERY_DATATYPE, echo_chain
from support.engine_server import EngineServer
from support.foreign_environment import REQUIREMENTS, environment, plain_variables
from support.tool_server import tool_server


async def run_script(client: str, argument: str, about: str = "") -> None:
    """Run the client's script by its own Python; what it says is shown when it fails."""
    python = await asyncio.to_thread(environment, client)
    script = REQUIREMENTS / f"use_{client}{about}.py"
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(script),
        argument,
        env=plain_variables(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def test_tritonclient_gets_every_datatype_back_and_its_errors_as_exceptions(
    tmp_path: Path,
) -> None:
    async with echo_chain(tmp_path, EVERY_DATATYPE) as chain:
        await run_script("tritonclient", f"127.0.0.1:{chain.port}")


async def test_openai_gets_embeddings_in_every_form_and_its_errors_as_exceptions(
    tmp_path: Path,
) -> None:
    async with running_chain(tmp_path, handler="support.text_handlers:Embedder") as chain:
        await run_script("openai", chain.url(""))


async def test_openai_streams_chats_and_gets_errors_as_exceptions(tmp_path: Path) -> None:
    async with EngineServer() as engine:
        chained = in_front_of(engine.url, tmp_path, upstream_protocol=ServerProtocol.OPENAI)
        async with chained as chain:
            await chain.ready()
            await run_script("openai", chain.url(""), "_streams")
            async with asyncio.timeout(5.0):
                while engine.counts()["running"]:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.01)
            assert engine.counts()["cancelled"] >= 3
            await assert_books_balance(chain)


async def test_an_agent_of_pydantic_ai_calls_its_tool_and_streams_what_came_of_it(
    tmp_path: Path,
) -> None:
    async with tool_server() as server:
        chained = in_front_of(server.url, tmp_path, upstream_protocol=ServerProtocol.OPENAI)
        async with chained as chain:
            await chain.ready()
            await run_script("pydantic_ai", chain.url(""))
            through, server.bodies = server.bodies, []
            await run_script("pydantic_ai", server.url)
            assert through == server.bodies
            assert len(through) == 5
            await assert_books_balance(chain)


async def test_openai_and_an_agent_get_texts_of_our_own_engine(tmp_path: Path) -> None:
    parameters = {"generates": "true", "stepSeconds": "0.005"}
    async with running_chain(tmp_path, handler="simulated", parameters=parameters) as chain:
        await run_script("openai", chain.url(""), "_texts")
        await run_script("pydantic_ai", chain.url(""), "_texts")
        # Those that were left are cancelled.
        await chain.until("batchedmodel_num_requests_running", lambda running: running == 0)
        assert await settled(chain, Outcome.CANCELLED) == 3
        await assert_books_balance(chain)
