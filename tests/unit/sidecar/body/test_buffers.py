"""Large bodies: the same bytes, in steps, without large copies."""

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_http.response import LARGE
from batchedmodel_sidecar.body.buffers import Room, pieces_of

STEP = 256 * 1024
lengths = st.integers(0, 40) | st.sampled_from([16_383, 16_384, STEP - 1, STEP, STEP + 1, 3 * STEP])


@given(st.lists(lengths, max_size=12))
def test_pieces_are_the_same_bytes_in_moderate_sizes(sizes: list[int]) -> None:
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    pieces = list(pieces_of(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert all(0 < len(piece) < STEP + 16_384 for piece in pieces)


def test_small_neighbours_are_joined() -> None:
    assert len(list(pieces_of([b"x" * 100] * 1000))) == 1


def test_a_body_fills_the_room_that_was_made_for_it() -> None:
    room = Room(LARGE)
    room.write(b"abc")
    room.write(memoryview(b"de"))
    assert bytes(room.view()) == b"abcde"
