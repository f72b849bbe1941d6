"""What an upstream server's refusals say about rows and about its memory."""

import pytest

from batchedmodel_sidecar.backends.upstream.batch_result import MemoryRoom, Verdict, judged


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, b"", Verdict.FINE),
        (400, b"bad shape", Verdict.SPOILT),
        (422, b"", Verdict.SPOILT),
        (500, b"ValueError", Verdict.SPOILT),
        (413, b"", Verdict.SPOILT),
        (401, b"", Verdict.WHOLE),
        (404, b"", Verdict.WHOLE),
        (502, b"bad gateway", Verdict.WHOLE),
        (302, b"", Verdict.WHOLE),
        (429, b"", Verdict.BUSY),
        (503, b"", Verdict.BUSY),
        (507, b"", Verdict.OUTGROWN),
        (500, b"CUDA out of memory. Tried to allocate 2 GiB", Verdict.OUTGROWN),
        (500, b"RESOURCE_EXHAUSTED: failed to allocate request", Verdict.OUTGROWN),
        (503, b"std::bad_alloc", Verdict.OUTGROWN),
        (400, b"out of memory is no word of ours", Verdict.SPOILT),
    ],
)
def test_the_status_and_the_words_say_whether_rows_are_to_blame(
    status: int, body: bytes, verdict: Verdict
) -> None:
    assert judged(status, body) is verdict


def test_memory_falls_at_once_and_grows_slowly_while_full_batches_go_well() -> None:
    room = MemoryRoom()
    assert not room.fine(100, now=0.0)
    room.outgrown(16, now=0.0)
    assert room.rows == 16
    assert not room.fine(16, now=59.0)
    assert not room.fine(15, now=61.0)
    assert room.fine(16, now=61.0)
    assert room.rows == 18
    assert not room.fine(18, now=62.0)
    room.outgrown(40, now=63.0)
    assert room.rows == 18
    room.outgrown(9, now=64.0)
    assert room.rows == 9
