"""A language model's server that first wants the caller's tool, and then says what it gave."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from support.listening import Listener
from support.ports import unused_port


@dataclass
class ToolServer:
    """Where it is, and what it was sent."""

    url: str
    bodies: list[bytes] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Call the first tool, say what came of it, or refuse a chat without tools."""
        self.bodies.append(body := await request.read())
        document = orjson.loads(body)
        given = [one["content"] for one in document["messages"] if one["role"] == "tool"]
        if not document.get("tools"):
            error = {"message": "no tool", "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        deltas, reason = (_saying(given), "stop") if given else (_calling(document), "tool_calls")
        if not document.get("stream"):
            return web.json_response(_whole(deltas, reason))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in deltas:
            await response.write(_event(delta, None))
        await response.write(_event({}, reason) + b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def tool_server() -> AsyncIterator[ToolServer]:
    """Serve until this is left."""
    port = unused_port()
    server = ToolServer(f"http://127.0.0.1:{port}")
    application = web.Application()
    application.router.add_post("/v1/chat/completions", server.answer)
    application.router.add_get("/v1/models", _models)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    listener = await Listener.start(runner, port)
    try:
        yield server
    finally:
        await listener.stop()
        await runner.cleanup()


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})


def _calling(document: dict[str, Any]) -> list[dict[str, Any]]:
    """A call whose arguments come in pieces, one of which ends within a letter's escape."""
    name = document["tools"][0]["function"]["name"]
    function = {"name": name, "arguments": ""}
    call = {"index": 0, "id": "call-1", "type": "function", "function": function}
    pieces = ['{"city": "M\\u00', 'fcnchen", ', '"days": 3}']
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    first = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [first, *[{"tool_calls": [one]} for one in rest]]


def _saying(given: list[str]) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": ""}, *[{"content": one} for one in ("so: ", *given)]]


def _event(delta: dict[str, Any], reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"


def _whole(deltas: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if reason == "stop":
        message["content"] = "".join(one["content"] for one in deltas)
    else:
        call = deltas[0]["tool_calls"][0]
        pieces = [one["tool_calls"][0]["function"]["arguments"] for one in deltas]
        function = {**call["function"], "arguments": "".join(pieces)}
        message["tool_calls"] = [{"id": call["id"], "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": usage}
