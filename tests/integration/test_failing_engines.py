"""An engine that fails outside its steps: what callers of the data port see, and how it ends."""

import asyncio
from pathlib import Path
from typing import Any

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.processes.environment import EXIT_DEVICE_LOST
from support.chain import START_SECONDS, Chain, running_chain
from support.engine_frames import submit
from support.generating_handlers import CANCELS, SPOILS, TAKES
from support.model_server_process import model_server
from support.private_hop import connected
from support.simulated_texts import chatted

HANDLER = "support.generating_handlers:Stumbling"
PARAMETERS = {"generates": "true", "stepSeconds": "0.005", "blocks": "256"}


def document(content: str, tokens: int) -> dict[str, Any]:
    return {"model": "m", "prompt": content, "max_tokens": tokens, "temperature": 0, "stream": True}


async def begin_and_leave(chain: Chain, content: str) -> None:
    """Ask for a long text, and hang up once it has begun."""
    async with chain.session.post(
        chain.url("/v1/completions"), json=document(content, 2000)
    ) as response:
        assert response.status == 200
        await response.content.readline()
        response.close()


async def test_texts_go_on_when_their_engine_fails_over_another_callers_leaving(
    tmp_path: Path,
) -> None:
    """The engine had no turn any more: all texts waited until their callers gave up, and the model
    was ready."""
    async with running_chain(tmp_path, handler=HANDLER, parameters=PARAMETERS) as chain:
        url = chain.url("/v1/chat/completions")
        others = [
            asyncio.create_task(chatted(chain.session, url, f"honest {number}", 300, model="m"))
            for number in range(4)
        ]
        await begin_and_leave(chain, f"leaves {chr(CANCELS)}")
        async with asyncio.timeout(START_SECONDS):
            assert await asyncio.gather(*others) == ["right"] * 4
            assert await chatted(chain.session, url, "one more", 20, model="m") == "right"
        await chain.model.wait_for("a test said so: cancel")
        assert (await chain.admin("/ready"))[0] == 200


async def test_texts_that_no_engine_can_bear_end_alone_and_all_others_are_whole(
    tmp_path: Path,
) -> None:
    """Two engines died over it, and every text that was in work ended with it. What had no token
    when the first one died was sent again together with it. Three of them in a row, with no token
    between them, made the whole process start anew."""
    async with running_chain(tmp_path, handler=HANDLER, parameters=PARAMETERS) as chain:
        url = chain.url("/v1/chat/completions")

        def chat(
            content: str, tokens: int, begun: asyncio.Event | None = None
        ) -> asyncio.Task[str]:
            return asyncio.create_task(
                chatted(chain.session, url, content, tokens, model="m", begun=begun)
            )

        async with asyncio.timeout(START_SECONDS):
            begun = [asyncio.Event() for _ in range(4)]
            running = [chat(f"honest {at}", 600, one) for at, one in enumerate(begun)]
            for one in begun:
                await one.wait()
            bad = [
                asyncio.create_task(status_of(chain, f"bad {number} {chr(TAKES)}"))
                for number in range(5)
            ]
            beside = [chat(f"beside {number}", 20) for number in range(4)]
            assert await asyncio.gather(*running, *beside) == ["right"] * 8
            for status, answer in await asyncio.gather(*bad):
                assert status == 502
                assert "died twice with this in work" in answer
            assert await chatted(chain.session, url, "one more", 20, model="m") == "right"
        assert (await chain.admin("/ready"))[0] == 200


async def status_of(chain: Chain, content: str) -> tuple[int, str]:
    """What the caller of one completion gets."""
    async with chain.session.post(
        chain.url("/v1/completions"), json=document(content, 20)
    ) as response:
        return response.status, await response.text()


async def test_a_model_whose_engines_all_fail_is_lost_and_its_process_ends(tmp_path: Path) -> None:
    async with model_server(tmp_path, HANDLER, parameters=PARAMETERS) as server:
        assert (await server.settled()).state is ModelState.READY
        events = server.hop.states()
        assert (await anext(events)).state is ModelState.READY
        async with connected(server.socket) as caller:
            await caller.send(submit(1, [SPOILS], max_tokens=5))
            while await caller.next() is not None:
                pass
        event = await anext(events)
        assert event.state is ModelState.LOST
        assert "the engine failed again and again: ZeroDivisionError: a test" in event.detail
        assert await asyncio.wait_for(server.process.wait(), START_SECONDS) == EXIT_DEVICE_LOST
