"""Clients of others, unchanged, each in an environment of its own, against real processes."""

import asyncio
from pathlib import Path

from support.chain import running_chain
from support.echo_server import EVERY_DATATYPE, echo_chain
from support.foreign_environment import REQUIREMENTS, environment, plain_variables


async def run_script(client: str, argument: str) -> None:
    """Run the client's script by its own Python; what it says is shown when it fails."""
    python = await asyncio.to_thread(environment, client)
    script = REQUIREMENTS / f"use_{client}.py"
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
