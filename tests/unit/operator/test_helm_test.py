"""What `helm test` finds right and wrong, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from batchedmodel_kube.errors import Unreachable
from batchedmodel_operator.helm_test import LeaseRenewal, all_is_well

pytestmark = pytest.mark.looptime


def _lease(*reads: tuple[str, str]) -> Callable[[], Awaitable[tuple[str, str]]]:
    """One after the other; the last again and again."""
    left = list(reads)

    async def read() -> tuple[str, str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return read


@pytest.mark.parametrize(
    ("reads", "complaint"),
    [
        ([("", "")], "nobody holds"),
        ([("pod-1", "5")], "does not renew"),
        ([("pod-1", "5"), ("pod-2", "6")], "pod-2 holds the operator's Lease and does not renew"),
        ([("pod-1", "5"), ("pod-1", "6")], ""),
    ],
)
async def test_an_operator_works_that_renews_its_lease_between_two_reconciles(
    reads: list[tuple[str, str]], complaint: str
) -> None:
    renewal = LeaseRenewal(_lease(*reads))
    assert await renewal.check() != ""
    found = await renewal.check()
    assert complaint in found
    assert bool(found) == bool(complaint)


async def test_what_comes_right_within_the_patience_is_well() -> None:
    begun = asyncio.get_running_loop().time()

    async def later() -> str:
        return "" if asyncio.get_running_loop().time() > begun + 20 else "not yet"

    assert await all_is_well({"it": later}, 30)
    begun = asyncio.get_running_loop().time()
    assert not await all_is_well({"it": later}, 10)


async def test_one_thing_that_stays_wrong_is_enough_and_the_others_are_told_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def right() -> str:
        return ""

    async def away() -> str:
        raise Unreachable("connection refused")

    with caplog.at_level("INFO"):
        assert not await all_is_well({"one": away, "other": right}, 5)
    assert "ok: other" in caplog.messages
    assert "not ok: one: connection refused" in caplog.messages
