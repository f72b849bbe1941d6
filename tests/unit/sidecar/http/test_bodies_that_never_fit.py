"""Bodies for which there is never memory: 413, which tells callers not to come again."""

import zlib
from typing import Final

import pytest

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.encodings import Encoding
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.errors import Rejected
from batchedmodel_sidecar.http.body_reader import BodyReader
from support.sidecar_world import call_of

LIMIT: Final = 1_000_000
SHARES: Final = [(Share("all"), LIMIT), (Share("half", most=0.5), LIMIT // 2)]
EACH: Final = pytest.mark.parametrize(("share", "most"), SHARES)


@pytest.fixture
def bodies() -> BodyReader:
    return BodyReader(max_bytes=2 * LIMIT, budget=ByteBudget(LIMIT), slots=SharedRegions(LIMIT))


def is_too_large(error: Rejected, most: int) -> bool:
    assert f"more than the {most} bytes" in error.message
    return (error.reason, error.status, error.retry_after) == (Rejection.TOO_LARGE, 413, None)


@EACH
def test_rows_that_take_more_than_a_caller_may_ever_hold(
    share: Share, most: int, bodies: BodyReader
) -> None:
    body, call = bytes(1000), call_of([bytes(most + 1)])
    with bodies.hold(share) as held:
        assert held.grow(len(body))
        with pytest.raises(Rejected) as refused:
            bodies.charge_rows(body, call, held)
    assert is_too_large(refused.value, most)


@EACH
def test_a_body_that_declares_more(share: Share, most: int, bodies: BodyReader) -> None:
    with pytest.raises(Rejected) as refused:
        bodies.refuse_declared(most + 1, share)
    assert is_too_large(refused.value, most)


@EACH
async def test_a_body_that_is_more_once_it_is_inflated(
    share: Share, most: int, bodies: BodyReader
) -> None:
    packed = zlib.compress(bytes(most))
    with bodies.hold(share) as held:
        assert held.grow(len(packed))
        with pytest.raises(Rejected) as refused:
            await bodies.decoded(packed, Encoding.DEFLATE, held)
    assert is_too_large(refused.value, most)


@EACH
def test_what_fits_when_others_have_left_may_come_again(
    share: Share, most: int, bodies: BodyReader
) -> None:
    call = call_of([bytes(most)])
    with bodies.hold(Share("other")) as others, bodies.hold(share) as held:
        assert others.grow(LIMIT - 1000)
        with pytest.raises(Rejected) as refused:
            bodies.charge_rows(b"", call, held)
        assert refused.value.status == 429
        assert refused.value.retry_after is not None
        others.release()
        bodies.charge_rows(b"", call, held)
