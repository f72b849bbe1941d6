"""Text of our own engine through both processes: what callers get, and when."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.outcomes import Outcome
from batchedmodel_contract.processes import sidecar_metrics as names
from support.books import assert_books_balance, settled
from support.chain import Chain, running_chain
from support.repository import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
SETTINGS: Final = BatchSettings()
PARAMETERS: Final = {"generates": "true", "stepSeconds": "0.01", "blocks": "256"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all, which must keep its books through all of it."""
    folder = tmp_path_factory.mktemp("generation")
    async with running_chain(
        folder, handler="simulated", parameters=PARAMETERS, settings=SETTINGS
    ) as chain:
        yield chain
        await assert_books_balance(chain)


@pytest_asyncio.fixture(loop_scope="module")
async def chain(running: Chain) -> Chain:
    await running.goes_by(SETTINGS)
    await assert_books_balance(running)
    return running


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "max_tokens": 8, "temperature": 0} | more


async def asked(chain: Chain, path: str, document: Any, **headers: str) -> tuple[int, Any]:
    url = chain.url(path)
    async with chain.session.post(url, json=document, headers=headers) as response:
        body = await response.read()
        if response.content_type == "text/event-stream":
            return response.status, events(body)
        return response.status, json.loads(body)


def events(body: bytes) -> list[Any]:
    """What the events of a stream hold, without the last one, which says that it is whole."""
    *found, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in found]


def text_of(found: list[Any], choice: int = 0) -> str:
    choices = [one for event in found for one in event["choices"] if one["index"] == choice]
    return "".join(one["delta"].get("content", "") for one in choices)


async def said(chain: Chain, **more: Any) -> str:
    """The answer to a chat, whole."""
    status, document = await asked(chain, CHAT, chat(**more))
    assert status == 200
    text: str = document["choices"][0]["message"]["content"]
    return text


async def test_a_stream_says_what_a_whole_answer_says(chain: Chain) -> None:
    whole = await said(chain)
    assert len(whole) == 8
    status, found = await asked(chain, CHAT, chat(stream=True))
    assert status == 200
    assert text_of(found) == whole
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert found[-1]["choices"][0]["finish_reason"] == "length"


async def test_usage_is_exact_in_both_forms(chain: Chain) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    await said(chain)  # so that both find as much in the cache
    _, found = await asked(chain, CHAT, chat(**options))
    _, document = await asked(chain, CHAT, chat())
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == document["usage"]
    assert document["usage"]["completion_tokens"] == 8
    assert all(one["usage"] is None for one in found[:-1])


async def test_usage_says_what_of_a_prompt_was_in_the_cache(chain: Chain) -> None:
    document = {"model": "m", "prompt": ["cached " * 20, "b"], "max_tokens": 2, "temperature": 0}
    told = [(await asked(chain, COMPLETIONS, document))[1] for _ in range(2)]
    assert told[0]["choices"] == told[1]["choices"]
    details = [one["usage"]["prompt_tokens_details"] for one in told]
    # 140 tokens in blocks of 16; of the last block a part.
    assert details == [{"cached_tokens": 0}, {"cached_tokens": 128}]
    await chain.until("batchedmodel_prompt_tokens_cached_total", lambda found: found >= 128)


async def test_endpoint_pickers_are_told_how_large_the_cache_is(chain: Chain) -> None:
    (spec,) = re.findall(r"cacheInfoSpec: (\w+)`", (ROOT / "docs/language-models.md").read_text())
    assert f"# TYPE {spec} gauge" in await chain.metrics()
    assert await chain.metric(spec, block_size="16", num_gpu_blocks="256") == 1


async def test_the_same_seed_gives_the_same_texts_in_any_company(chain: Chain) -> None:
    alone = await said(chain, temperature=1, seed=5)
    others = [said(chain, text=str(n), temperature=1) for n in range(20)]
    together = await asyncio.gather(said(chain, temperature=1, seed=5), *others)
    assert together[0] == alone


async def test_choices_of_a_prompt_differ_and_are_told_apart(chain: Chain) -> None:
    sampled: dict[str, Any] = {"temperature": 1, "seed": 3, "n": 3}
    _, document = await asked(chain, CHAT, chat(**sampled))
    whole = [one["message"]["content"] for one in document["choices"]]
    assert len(set(whole)) == 3
    assert document["usage"]["completion_tokens"] == 24
    _, found = await asked(chain, CHAT, chat(stream=True, **sampled))
    assert [text_of(found, choice) for choice in range(3)] == whole


async def test_a_stop_string_is_no_part_of_the_text(chain: Chain) -> None:
    whole = await said(chain)
    status, found = await asked(chain, CHAT, chat(stream=True, stop=whole[3:5]))
    assert status == 200
    assert text_of(found) == whole[:3]
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


async def test_several_prompts_are_answered_in_their_order(chain: Chain) -> None:
    document = {"model": "m", "prompt": ["a", "b"], "max_tokens": 4, "temperature": 0, "n": 1}
    _, both = await asked(chain, COMPLETIONS, document)
    for at, prompt in enumerate("ab"):
        _, one = await asked(chain, COMPLETIONS, document | {"prompt": prompt})
        assert one["choices"][0]["text"] == both["choices"][at]["text"]
        assert both["choices"][at]["index"] == at


async def test_a_list_longer_than_what_runs_at_once_is_answered_whole(chain: Chain) -> None:
    document = {"model": "m", "prompt": [str(n) for n in range(100)], "max_tokens": 3}
    before = await chain.metric(names.PROMPT_TOKENS)
    status, answer = await asked(chain, COMPLETIONS, document)
    assert status == 200
    after = await chain.metric(names.PROMPT_TOKENS)
    assert answer["usage"]["prompt_tokens"] == after - before >= 190
    assert [len(one["text"]) for one in answer["choices"]] == [3] * 100


async def test_tritons_clients_are_answered_in_their_form(chain: Chain) -> None:
    document = {"text_input": "a", "id": "7", "parameters": {"max_tokens": 4, "temperature": 0}}
    status, whole = await asked(chain, "/v2/models/m/generate", document)
    assert status == 200
    assert (whole["id"], whole["model_name"]) == ("7", "m")
    url = chain.url("/v2/models/m/generate_stream")
    async with chain.session.post(url, json=document) as response:
        pieces = (await response.read()).split(b"\n\n")[:-1]
    texts = [json.loads(one.removeprefix(b"data: "))["text_output"] for one in pieces]
    assert "".join(texts) == whole["text_output"]


async def test_an_answer_holds_no_piece_of_a_prompt_that_ends_unreadably(chain: Chain) -> None:
    """Answers began with the end of such a prompt, whichever way it came."""
    unreadable, cut = "hello \ufffd", list("hello \u20ac".encode())[:-1]
    told = []
    for prompt in (unreadable, list(unreadable.encode()), cut):
        document = {"model": "m", "prompt": prompt, "max_tokens": 4}
        _, answer = await asked(chain, COMPLETIONS, document)
        told.append(answer["choices"][0]["text"])
    generate = {"text_input": unreadable, "parameters": {"max_tokens": 4}}
    _, answer = await asked(chain, "/v2/models/m/generate", generate)
    told.append(answer["text_output"])
    begun = [{"role": "user", "content": "a"}, {"role": "assistant", "content": unreadable}]
    more = {"messages": begun, "continue_final_message": True, "max_tokens": 4}
    told.append(await said(chain, **more))
    assert [len(one) for one in told] == [4] * 5, told
    assert all(one.isascii() for one in told), told


async def test_probabilities_come_with_the_tokens_they_are_of(chain: Chain) -> None:
    _, document = await asked(chain, CHAT, chat(logprobs=True, top_logprobs=1))
    content = document["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == document["choices"][0]["message"]["content"]
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 1 for one in content)
    _, found = await asked(chain, CHAT, chat(logprobs=True, stream=True))
    told = [one["choices"][0]["logprobs"] for one in found]
    assert sum(len(one["content"]) for one in told if one) == 8


async def test_what_cannot_be_served_is_refused_by_its_field(chain: Chain) -> None:
    status, told = await asked(chain, CHAT, chat(tools=[{"type": "function"}]))
    assert (status, told["error"]["param"]) == (400, "tools")
    status, told = await asked(chain, CHAT, chat(max_tokens=10**6))
    assert (status, told["error"]["param"]) == (400, "max_tokens")
    status, told = await asked(chain, "/v2/models/m/generate", {"text_input": 3})
    assert (status, told["error"][:10]) == (400, "text_input")
    status, told = await asked(chain, CHAT, chat(model="another"))
    assert (status, told["error"]["code"]) == (404, "model_not_found")


async def test_choices_that_take_all_places_keep_no_other_caller_waiting(chain: Chain) -> None:
    await chain.goes_by(BatchSettings(max_sequences=4))
    long = asyncio.create_task(said(chain, max_tokens=200))
    await chain.until(names.GENERATION_RUNNING, lambda running: running == 1)
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with aiohttp.ClientSession(connector=elsewhere) as session:
        body = chat(n=4, max_tokens=50, stream=True)
        async with session.post(chain.url(CHAT), json=body) as many:
            # Its first token comes while the long one has a place.
            begun = await many.content.readany()
            third = aiohttp.TCPConnector(local_addr=("127.0.0.3", 0))
            async with (
                aiohttp.ClientSession(connector=third) as other,
                other.post(chain.url(CHAT), json=chat(max_tokens=4)) as small,
            ):
                assert small.status == 200
                await small.read()
            assert not long.done()
            found = events(begun + await many.read())
    assert [len(text_of(found, choice)) for choice in range(4)] == [50] * 4
    assert len(await long) == 200


async def test_an_edit_of_how_many_texts_run_is_in_force_at_once(chain: Chain) -> None:
    await chain.goes_by(BatchSettings(max_sequences=2))
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(said(chain, text=str(number), max_tokens=100))
        # The engine has the next one or two already, for the moment at which one ends.
        await chain.until(names.GENERATION_WAITING, lambda waiting: waiting >= 2)
        await chain.goes_by(BatchSettings(max_sequences=6))
        await chain.until(names.GENERATION_RUNNING, lambda running: running == 6)


async def test_a_step_of_few_tokens_still_reads_a_long_prompt(chain: Chain) -> None:
    whole = await said(chain, text="x" * 500)
    await chain.goes_by(BatchSettings(max_tokens_per_step=16))
    assert await said(chain, text="x" * 500) == whole


async def test_a_caller_that_leaves_frees_its_place_within_a_step(chain: Chain) -> None:
    url = chain.url(CHAT)
    before = await settled(chain, Outcome.CANCELLED)
    async with chain.session.post(url, json=chat(max_tokens=2000, stream=True)) as response:
        await response.content.readany()
        assert await chain.metric(names.GENERATION_RUNNING) == 1
    await chain.until(names.GENERATION_RUNNING, lambda running: running == 0)
    assert await settled(chain, Outcome.CANCELLED) == before + 1
    # The engine says after its next step that the blocks are free.
    await said(chain)
    assert await chain.metric(names.CACHE_USAGE) < 0.05


async def test_a_killed_engine_loses_and_doubles_no_token(chain: Chain) -> None:
    texts = [f"text {number}" for number in range(20)]
    whole = [await said(chain, text=text, max_tokens=60) for text in texts[:3]]
    streams = [
        asyncio.create_task(asked(chain, CHAT, chat(text, max_tokens=60, stream=True)))
        for text in texts
    ]
    await chain.until(names.GENERATION_RUNNING, lambda running: running == len(texts))
    await asyncio.sleep(0.2)
    # The next one runs fewer, and takes all the same what had begun.
    await chain.goes_by(BatchSettings(max_sequences=4))
    after = len(chain.sidecar.lines)
    chain.model.send(signal.SIGKILL)
    await chain.model.ended()
    await chain.model.start()
    await chain.ready(after=after)
    found = await asyncio.gather(*streams)
    assert [status for status, _ in found] == [200] * len(texts)
    assert [len(text_of(told)) for _, told in found] == [60] * len(texts)
    assert [text_of(told) for _, told in found[:3]] == whole


async def test_who_holds_all_places_gives_way_to_another_and_loses_no_token(chain: Chain) -> None:
    await chain.goes_by(BatchSettings(max_sequences=4))
    document = chat(n=4, max_tokens=200, temperature=1, seed=5)
    _, alone = await asked(chain, CHAT, document)
    hog = asyncio.create_task(asked(chain, CHAT, document))
    await chain.until(names.GENERATION_RUNNING, lambda running: running == 1)
    await asyncio.sleep(0.1)
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with (
        aiohttp.ClientSession(connector=elsewhere) as other,
        other.post(chain.url(CHAT), json=chat()) as response,
    ):
        assert response.status == 200
        await response.read()
    assert not hog.done()
    _, beside = await hog
    assert beside["choices"] == alone["choices"]


async def test_a_body_may_be_compressed_and_large(chain: Chain) -> None:
    text = "word " * 4000
    status, document = await asked(chain, CHAT, chat(text, max_tokens=1000))
    assert (status, document["error"]["param"]) == (400, "messages")
    status, document = await asked(chain, CHAT, chat(text[:3000], max_tokens=1))
    assert status == 200
    assert document["usage"]["prompt_tokens"] > 2900


async def test_a_deadline_that_passes_before_the_first_token_is_a_504(chain: Chain) -> None:
    # A prompt of thousands of tokens takes longer to read.
    status, told = await asked(
        chain, CHAT, chat("x" * 3900, max_tokens=1), **{"x-request-timeout-ms": "1"}
    )
    assert status in (429, 504), told


async def test_a_hundred_at_once_are_all_answered(chain: Chain) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(said(chain, text=str(n))) for n in range(100)]
    assert all(len(task.result()) == 8 for task in tasks)


async def test_edited_bounds_apply_at_once(chain: Chain) -> None:
    texts = [asyncio.create_task(said(chain, text=str(n), max_tokens=60)) for n in range(6)]
    await chain.until(names.GENERATION_RUNNING, lambda running: running == 6)
    await chain.goes_by(BatchSettings(max_sequences=2, max_tokens_per_step=16))
    assert await chain.metric(names.GENERATION_LIMIT) == 2
    # What runs goes on, and what comes is served.
    more = [asyncio.create_task(said(chain, text=f"m{n}", max_tokens=30)) for n in range(6)]
    assert [len(text) for text in await asyncio.gather(*texts)] == [60] * 6
    # Two run, and two may wait at the engine for what ends next.
    assert await chain.metric(names.GENERATION_RUNNING) <= 4
    assert [len(text) for text in await asyncio.gather(*more)] == [30] * 6
    _, several = await asked(chain, CHAT, chat(n=5, max_tokens=7))
    assert sorted(one["index"] for one in several["choices"]) == [0, 1, 2, 3, 4]
    assert several["usage"]["completion_tokens"] == 35


async def test_a_model_that_generates_nothing_says_so(tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("plain")
    async with running_chain(folder, handler="simulated") as plain:
        status, told = await asked(plain, CHAT, chat())
        assert (status, told["error"]["message"]) == (404, "model: m generates no text")


async def test_streams_end_within_a_drain_and_what_comes_is_refused(chain: Chain) -> None:
    url = chain.url(CHAT)
    async with chain.session.post(url, json=chat(max_tokens=50, stream=True)) as response:
        await response.content.readany()
        await chain.begin_drain()
        # On a connection of its own: idle ones end with the drain's beginning.
        async with aiohttp.ClientSession() as fresh, fresh.post(url, json=chat()) as refused:
            assert refused.status == 503
        rest = await response.read()
    assert rest.endswith(b"data: [DONE]\n\n")
