"""Run by the Python of the environment `openai`: chats through the sidecar as a program would.

Its one argument is the server's URL; behind it is the simulated engine. It ends with an assertion
if an answer is wrong.
"""

import asyncio
import json
import sys
import time
from typing import Any

import openai

MESSAGES: Any = [{"role": "user", "content": "hello"}]
URL = f"{sys.argv[1]}/v1"


def simulated(**how: Any) -> dict[str, str]:
    return {"x-simulate": json.dumps(how)}


def texts(mark: int, tokens: int) -> list[str]:
    return [f" t{mark}-{number}" for number in range(tokens)]


def said(chunks: Any) -> list[str]:
    return [one.choices[0].delta.content for one in chunks if one.choices and content(one)]


def content(chunk: Any) -> str | None:
    found: str | None = chunk.choices[0].delta.content
    return found


client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
chat = client.chat.completions

# Whole answers and streams.
answer = chat.create(model="m", messages=MESSAGES, max_tokens=5, extra_headers=simulated(mark=1))
assert answer.choices[0].message.content == "".join(texts(1, 5)), answer
assert answer.usage is not None
assert answer.usage.completion_tokens == 5
stream = chat.create(
    model="m",
    messages=MESSAGES,
    max_tokens=8,
    stream=True,
    stream_options={"include_usage": True},
    extra_headers=simulated(mark=2),
)
chunks = list(stream)
assert said(chunks) == texts(2, 8), chunks
assert chunks[-1].usage is not None
assert chunks[-1].usage.completion_tokens == 8
text = client.completions.create(
    model="m", prompt="once", max_tokens=4, stream=True, extra_headers=simulated(mark=3)
)
assert [one.choices[0].text for one in text if one.choices[0].text] == texts(3, 4)

# Errors as exceptions: before the first token by the status, behind it by an event.
try:
    chat.create(model="m", messages=MESSAGES, extra_headers=simulated(status=400))
except openai.BadRequestError as error:
    assert error.status_code == 400
else:
    raise AssertionError("not refused")
broken = chat.create(
    model="m", messages=MESSAGES, max_tokens=9, stream=True,
    extra_headers=simulated(breaks_off_after=3),
)  # fmt: skip
came = []
try:
    for chunk in broken:
        came += [chunk] if content(chunk) else []
except openai.APIError as error:
    assert "went away" in error.message, error
else:
    raise AssertionError("half an answer looked whole")
assert len(came) == 3, came

# The client's own time-out.
began = time.monotonic()
try:
    client.with_options(timeout=0.5).chat.completions.create(
        model="m", messages=MESSAGES, extra_headers=simulated(hangs_after=0)
    )
except openai.APITimeoutError:
    assert time.monotonic() - began < 2
else:
    raise AssertionError("it did not time out")

# A stream that is left in the midst.
with chat.create(model="m", messages=MESSAGES, max_tokens=500, stream=True) as left:
    next(iter(left))


async def main() -> None:
    """Many at once, and one that is cancelled."""
    async with openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as several:

        async def one(mark: int) -> list[str]:
            stream: Any = await several.chat.completions.create(
                model="m", messages=MESSAGES, max_tokens=6, stream=True,
                extra_headers=simulated(mark=mark),
            )  # fmt: skip
            return [content(chunk) async for chunk in stream if content(chunk)]  # type: ignore[misc]

        found = await asyncio.gather(*[one(mark) for mark in range(100, 130)])
        assert found == [texts(mark, 6) for mark in range(100, 130)]
        leaving = asyncio.create_task(
            several.chat.completions.create(model="m", messages=MESSAGES, max_tokens=500)
        )
        await asyncio.sleep(0.2)
        leaving.cancel()
        try:
            await leaving
        except asyncio.CancelledError:
            return
        raise AssertionError("it was not cancelled")


asyncio.run(main())
