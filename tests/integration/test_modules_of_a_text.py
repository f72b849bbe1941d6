"""How many modules of ours a streamed chat of our own engine passes in the sidecar."""

from pathlib import Path
from typing import Final

import pytest

from support.chain import running_chain
from support.module_traces import modules_of

_MOST_MODULES: Final = 45
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

        async def chat() -> None:
            async with chain.session.post(chain.url("/v1/chat/completions"), json=_CHAT) as answer:
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")

        modules = await modules_of(chain, chat)
    assert 10 < len(modules) <= _MOST_MODULES, "\n".join(modules)
