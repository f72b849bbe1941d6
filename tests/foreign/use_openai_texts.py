"""Run by the Python of the environment `openai`: what our own engine answers to a program.

Its one argument is the server's URL; behind it is a simulated device, whose tokens depend on the
prompt and the seed. It ends with an assertion if an answer is wrong.
"""

import asyncio
import sys
import time
from typing import Any

import openai

URL = f"{sys.argv[1]}/v1"
MESSAGES: Any = [{"role": "user", "content": "hello"}]
client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
chat = client.chat.completions


def said(chunks: Any) -> str:
    return "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)


# A whole answer and a stream say the same, and count the same.
answer = chat.create(model="m", messages=MESSAGES, max_completion_tokens=8, temperature=0)
whole = answer.choices[0].message.content
assert whole is not None
assert len(whole) == 8
assert answer.choices[0].finish_reason == "length"
assert answer.usage is not None
chunks = list(
    chat.create(
        model="m",
        messages=MESSAGES,
        max_completion_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
)
assert said(chunks) == whole
assert chunks[-1].usage == answer.usage

# Seeds, choices, stops and probabilities.
seeded = [
    chat.create(model="m", messages=MESSAGES, max_tokens=8, seed=3, n=2).choices for _ in range(2)
]
texts = [[one.message.content for one in choices] for choices in seeded]
assert texts[0] == texts[1]
assert texts[0][0] != texts[0][1]
stopped = chat.create(
    model="m", messages=MESSAGES, max_tokens=8, temperature=0, stop=[whole[2:4]]
).choices[0]
assert (stopped.message.content, stopped.finish_reason) == (whole[:2], "stop")
told = chat.create(
    model="m", messages=MESSAGES, max_tokens=3, temperature=0, logprobs=True, top_logprobs=1
).choices[0]
assert told.logprobs is not None
assert told.logprobs.content is not None
assert "".join(one.token for one in told.logprobs.content) == whole[:3]

# Completions, also of token ids and of several prompts.
text = client.completions.create(model="m", prompt="a", max_tokens=4, temperature=0).choices[0].text
ids = client.completions.create(model="m", prompt=[97], max_tokens=4, temperature=0)
both = client.completions.create(model="m", prompt=["a", "b"], max_tokens=4, temperature=0)
assert text == ids.choices[0].text == both.choices[0].text
pieces = client.completions.create(model="m", prompt="a", max_tokens=4, temperature=0, stream=True)
assert "".join(one.choices[0].text for one in pieces) == text

# Errors as exceptions.
for wrong, field in (({"max_tokens": 10**6}, "max_tokens"), ({"n": 1000}, "n")):
    try:
        chat.create(model="m", messages=MESSAGES, **wrong)
    except openai.BadRequestError as error:
        assert error.param == field, error
    else:
        raise AssertionError(f"{wrong} was not refused")
try:
    chat.create(model="another", messages=MESSAGES)
except openai.NotFoundError as error:
    assert error.code == "model_not_found"
else:
    raise AssertionError("another model answered")

# The client's own time-out, and a stream that is left in the midst.
began = time.monotonic()
try:
    client.with_options(timeout=0.5).chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=3000
    )
except openai.APITimeoutError:
    assert time.monotonic() - began < 2
else:
    raise AssertionError("it did not time out")
with chat.create(model="m", messages=MESSAGES, max_tokens=3000, stream=True) as left:
    next(iter(left))


async def main() -> None:
    """Many at once, and one that is cancelled."""
    async with openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as several:

        async def one() -> str:
            stream: Any = await several.chat.completions.create(
                model="m", messages=MESSAGES, max_tokens=8, temperature=0, stream=True
            )
            return said([chunk async for chunk in stream])

        assert await asyncio.gather(*[one() for _ in range(30)]) == [whole] * 30
        leaving = asyncio.create_task(
            several.chat.completions.create(model="m", messages=MESSAGES, max_tokens=3000)
        )
        await asyncio.sleep(0.2)
        leaving.cancel()
        try:
            await leaving
        except asyncio.CancelledError:
            return
        raise AssertionError("it was not cancelled")


asyncio.run(main())
