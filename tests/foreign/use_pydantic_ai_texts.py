"""Run by the Python of the environment `pydantic_ai`: an agent on our own engine.

Its one argument is the server's URL. It ends with an assertion if an answer is wrong.
"""

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

CLIENT = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
MODEL = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=CLIENT))
SETTINGS = ModelSettings(max_tokens=12, temperature=0.0)


async def main() -> None:
    agent = Agent(MODEL, instructions="Be brief.", model_settings=SETTINGS)
    whole = await agent.run("How is the weather?")
    assert len(whole.output) == 12, whole.output
    async with agent.run_stream("How is the weather?") as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == whole.output
    # The answer goes back with the next question.
    again = await agent.run("And tomorrow?", message_history=whole.all_messages())
    assert len(again.output) == 12

    def forecast(city: str) -> str:
        """The weather of a city."""
        return city

    try:
        await Agent(MODEL, tools=[forecast], model_settings=SETTINGS).run("How is the weather?")
    except ModelHTTPError as error:
        assert error.status_code == 400
        assert "tools" in str(error), error
    else:
        raise AssertionError("tools were ignored")


asyncio.run(main())
