"""Run by the Python of the environment `pydantic_ai`: an agent with a tool, through the sidecar.

Its one argument is the server's URL; behind it is a server that wants the tool and says what it
gave. It ends with an assertion if an answer is wrong.
"""

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

CLIENT = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
MODEL = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=CLIENT))
called: list[tuple[str, int]] = []


def forecast(city: str, days: int) -> str:
    """The weather of a city, for so many days."""
    called.append((city, days))
    return f"{city}: rain on {days} days"


async def main() -> None:
    agent = Agent(MODEL, tools=[forecast])

    # A whole answer, and a stream: each is a call of the tool, and what is said of it.
    whole = await agent.run("How is the weather?")
    assert whole.output == "so: München: rain on 3 days", whole.output
    async with agent.run_stream("How is the weather?") as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    assert pieces == ["so: ", "München: rain on 3 days"], pieces
    assert called == [("München", 3)] * 2, called

    # An error as an exception, with the server's words.
    try:
        await Agent(MODEL).run("How is the weather?")
    except ModelHTTPError as error:
        assert error.status_code == 400
        assert "no tool" in str(error), error
    else:
        raise AssertionError("not refused")


asyncio.run(main())
