"""Answers as aiohttp is given them."""

import weakref

import pytest

from batchedmodel_http.response import LARGE, Response
from batchedmodel_sidecar.http.responses import as_web


async def test_an_upstream_servers_odd_header_arrives_as_it_was() -> None:
    odd = Response((), headers=(("x", b"caf\xe9".decode(errors="surrogateescape")),))
    assert as_web(odd).headers["x"] == "caf\xe9"


class Reply(bytearray):
    """To a batch; can be watched."""


@pytest.mark.parametrize("streams", [True, False])
async def test_a_large_answer_that_is_written_keeps_none_of_its_batchs_other_answers(
    streams: bool,
) -> None:
    """Who reads nothing of its own would have the process keep all of them."""
    whole = Reply(4 * LARGE)
    watched = weakref.ref(whole)
    response = Response([memoryview(whole)[: LARGE + 1]])
    written: object = as_web(response) if streams else response.to_wire(close=False)
    del whole, response
    assert watched() is None
    assert written
