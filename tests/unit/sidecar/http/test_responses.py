"""Answers as aiohttp is given them."""

from batchedmodel_http.response import Response
from batchedmodel_sidecar.http.responses import as_web


async def test_a_foreign_servers_odd_header_arrives_as_it_was() -> None:
    odd = Response((), headers=(("x", b"caf\xe9".decode(errors="surrogateescape")),))
    assert as_web(odd).headers["x"] == "caf\xe9"
