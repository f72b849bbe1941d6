"""The budget of bytes that bodies share: what each caller may hold, and what comes back."""

from contextlib import ExitStack

import pytest

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_sidecar.body.byte_budget import ByteBudget


class TestByteBudget:
    def test_a_share_grows_with_what_arrives_and_is_given_back_whatever_happens(self) -> None:
        budget = ByteBudget(100)
        with pytest.raises(ZeroDivisionError), budget.hold(NOBODY) as held:
            held.grow(80 // 0)
        with budget.hold(NOBODY) as held:
            assert held.grow(60)
            assert held.grow(20)
            assert not held.grow(21)
            assert budget.in_use == 80
        assert budget.in_use == 0
        assert budget.refusal(NOBODY, 100) is None

    def test_bodies_of_one_tenant_leave_room_for_those_of_another(self) -> None:
        budget, flood = ByteBudget(800), Share("flood")
        with ExitStack() as theirs:
            while theirs.enter_context(budget.hold(flood)).grow(100):
                pass
            assert budget.in_use == 700
            with budget.hold(Share("other")) as mine:
                assert mine.grow(60)
                assert mine.grow(40), "the rest of its first body"

    def test_what_a_body_lends_leaves_the_spare_room_to_others(self) -> None:
        budget = ByteBudget(800)
        with budget.hold(Share("large")) as mine, budget.hold(Share("other")) as others:
            assert mine.grow(100)
            assert mine.lend(601) is None
            assert mine.refused == "too_large", "not even if nobody had anything"
            lent = mine.lend(600)
            assert lent is not None
            assert others.grow(60)
            mine.release()
            assert budget.in_use == 660, "until the end of its job"
            lent.release()
            assert mine.grow(100)
            assert mine.lend(560) is None
            assert mine.refused == "queue_full"
            must = mine.lend(900, must=True)
            assert must is not None
            assert not others.grow(1)
            must.release()
        assert budget.in_use == 0
