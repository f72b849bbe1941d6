"""Bodies in chunks that end in bytes which are no chunk: their readers are told.

Used by the doors behind all that aiohttp gets, and by whoever answers. aiohttp itself tells only
the reader of the next request; that of the body would wait for the rest as long as it has time.
"""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, _ErrInfo


def tell_reader(general: RequestHandler, loop: asyncio.AbstractEventLoop) -> None:
    """If the parser has just found no HTTP, fail the body that it was in, if it was in one.

    Whoever reads it gets `aiohttp.web.RequestPayloadError`, and ends the connection behind the
    answer.
    """
    # No public way to any of these.
    messages, request = general._messages, general._current_request
    if not messages or not isinstance(messages[-1][0], _ErrInfo):
        return
    # The fault may stand there twice: aiohttp parses on when it has taken a message out.
    waiting = [body for message, body in messages if not isinstance(message, _ErrInfo)]
    if waiting:
        body = waiting[-1]
    elif request is not None:
        body = request.content
    else:
        # Its request is on the way from the queue to its handler, and aiohttp names it nowhere
        # until the handler's first turn. Or there was none, and aiohttp takes the fault itself.
        loop.call_soon(tell_reader, general, loop)
        return
    if not body.is_eof():
        body.set_exception(web.RequestPayloadError(messages[-1][0].message))


def is_broken(request: web.BaseRequest) -> bool:
    """Whether its body broke off, so that nobody knows where another request would begin."""
    return request.content.exception() is not None
