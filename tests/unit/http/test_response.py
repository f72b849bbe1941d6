"""Answers as they go over the wire."""

import weakref

from batchedmodel_http.response import LARGE, Response


class Reply(bytearray):
    """To a batch; can be watched."""


def test_a_large_answer_that_is_written_keeps_none_of_its_batchs_other_answers() -> None:
    """Who reads nothing of its own would have the process keep all of them."""
    whole = Reply(4 * LARGE)
    watched = weakref.ref(whole)
    response = Response([memoryview(whole)[: LARGE + 1]])
    written = response.to_wire(close=False)
    del whole, response
    assert watched() is None
    assert written


def test_an_answer_to_head_says_how_long_its_body_would_be_and_has_none() -> None:
    (wire,) = Response((b"ab", b"c")).to_wire(close=False, head_only=True)
    assert b"Content-Length: 3\r\n" in bytes(wire)
    assert bytes(wire).endswith(b"\r\n\r\n")
