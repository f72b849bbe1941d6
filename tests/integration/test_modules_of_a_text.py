"""How many modules of ours a streamed chat of our own engine passes in the sidecar."""

import json
import signal
from pathlib import Path
from typing import Final

import pytest

from support.chain import running_chain

_MOST_MODULES: Final = 65
"""61 to 63 are counted, as timers of others may fall into the trace; 50 are wanted."""
_CHAT: Final = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 8,
    "temperature": 0,
    "stream": True,
}


@pytest.mark.slow
async def test_a_streamed_chat_passes_few_modules(tmp_path: Path) -> None:
    parameters = {"generates": "true", "stepSeconds": "0.01", "blocks": "256"}
    async with running_chain(
        tmp_path,
        handler="simulated",
        parameters=parameters,
        sidecar_module="support.traced_sidecar",
    ) as chain:
        bodies = []
        for trace in (False, True):  # what only the first text needs is no part of the way
            if trace:
                chain.sidecar.send(signal.SIGUSR1)
                await chain.sidecar.wait_for("^tracing$")
            async with chain.session.post(chain.url("/v1/chat/completions"), json=_CHAT) as answer:
                bodies.append(await answer.read())
        chain.sidecar.send(signal.SIGUSR2)
        found = await chain.sidecar.wait_for("^modules: (.*)$")
    assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
    modules = json.loads(found[1])
    assert len(modules) <= _MOST_MODULES, "\n".join(modules)
