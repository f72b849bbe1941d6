"""Run by the Python of the environment `openai`: asks a server as a user's program would.

Its one argument is the server's URL. It ends with an assertion if an answer is wrong.
"""

import sys
from typing import Any

import openai


def raised(kind: type[openai.APIStatusError], words: str, **asked: Any) -> None:
    try:
        client.embeddings.create(**{"model": "m", "input": "good"} | asked)
    except kind as error:
        assert words in error.message, error
        assert error.request_id == "from the caller", error.request_id
    else:
        raise AssertionError(f"not refused: {asked}")


def vectors(**asked: Any) -> list[list[float]]:
    answer = client.embeddings.create(model="m", **asked)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    assert answer.model == "m"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return [one.embedding for one in answer.data]


client = openai.OpenAI(
    base_url=f"{sys.argv[1]}/v1",
    api_key="none",
    max_retries=0,
    default_headers={"x-request-id": "from the caller"},
)
GOOD, BAD = [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]
# The client asks for base64 unless it is told otherwise.
assert vectors(input="good") == [GOOD]
assert vectors(input=["good", "bad"]) == [GOOD, BAD]
assert vectors(input=[1, 3, 2]) == [GOOD]
assert vectors(input=[[1, 3, 2], [4]]) == [GOOD, BAD]
assert vectors(input="good", encoding_format="float") == [GOOD]
assert vectors(input="good", user="somebody") == [GOOD]
encoded = client.embeddings.create(model="m", input="good", encoding_format="base64")
assert encoded.data[0].embedding == "AACAPwAAAAAAAAAAAAAAAA=="
assert vectors(input="good", dimensions=2) == [[1.0, 0.0]]
assert len(vectors(input=["good"] * 2048)) == 2048

raised(openai.NotFoundError, "not served here", model="other")
raised(openai.BadRequestError, "input[0]: is an empty text", input="")
raised(openai.BadRequestError, "dimensions: 9", dimensions=9)
raised(openai.BadRequestError, "encoding_format", encoding_format="hex")
raised(openai.BadRequestError, "is not taken here", extra_body={"temperature": 1})
soon = {"x-request-timeout-ms": "soon"}
raised(openai.BadRequestError, "x-request-timeout-ms", extra_headers=soon)

assert [one.id for one in client.models.list()] == ["m"]
assert client.models.retrieve("m").id == "m"
try:
    client.models.retrieve("other")
except openai.NotFoundError as error:
    assert "not served here" in error.message
else:
    raise AssertionError("another model was found")
