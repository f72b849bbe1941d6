"""The order of requests that wait: of tenants by device time, of a tenant's by state and rank."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.generation.admission import Admission
from batchedmodel_scheduling.generation.requests import GenerationRequest
from batchedmodel_scheduling.queue.items import Priority, RequestGroup
from support.generation_requests import NUMBERS, busy, offered, one_at_a_time, request


def served(
    admission: Admission, requests: list[GenerationRequest], turns: int, *, now: float = 0.0
) -> list[GenerationRequest]:
    """Those that go one after the other, each with an answer as long as was expected."""
    by_id, order = {one.id: one for one in requests}, []
    for _ in range(turns):
        (number,) = admission.poll(now).release
        order.append(by_id[number])
        admission.ended(number, now, output_tokens=50)
    return order


def test_who_comes_after_idling_has_saved_nothing() -> None:
    admission, running = busy()
    admission.ended(running, 0.0, output_tokens=50)
    requests = [request("busy") for _ in range(100)]
    offered(admission, *requests)
    served(admission, requests, 50)
    after = [request("late") for _ in range(20)]
    offered(admission, *after)
    order = served(admission, requests + after, 20)
    assert 9 <= Counter(one.share.tenant for one in order)["late"] <= 11


def test_what_a_request_cost_in_the_end_is_what_its_tenant_pays() -> None:
    admission, running = busy()
    tenants = dict[int, str]()
    for tenant in ("short", "long") * 100:
        one = request(tenant, prompt=0)
        tenants[one.id] = tenant
        offered(admission, one)
    had = Counter[str]()
    admission.ended(running, 0.0, output_tokens=50)
    for _ in range(100):
        (number,) = admission.poll(0.0).release
        had[tenants[number]] += 1
        admission.ended(number, 0.0, output_tokens=10 if tenants[number] == "short" else 30)
    assert had["short"] == pytest.approx(3 * had["long"], abs=5)


@given(st.permutations([("a", 0.1), ("b", 0.2), ("c", 0.7)] * 2))
def test_fractions_of_weights_leave_nothing_behind(order: list[tuple[str, float]]) -> None:
    admission, running = busy()
    admission.ended(running, 0.0, output_tokens=50)
    for _ in range(3):
        offered(admission, *(weighted(name, weight) for name, weight in order))
        one_at_a_time(admission)
    waiting = [weighted(name, weight) for name, weight in (("b", 0.2), ("c", 0.7)) * 100]
    offered(admission, *waiting)
    had = Counter(one.share.tenant for one in served(admission, waiting, 90))
    assert 15 <= had["b"] <= 25


def weighted(tenant: str, weight: float) -> GenerationRequest:
    return request(tenant)._replace(share=Share(tenant, weight))


def late_and_on_time(
    tenants: str, *, late: int, on_time: int
) -> tuple[Admission, list[GenerationRequest]]:
    """Each tenant has so many that are late, of alternating priorities, and others."""
    admission, running = busy(first_token_seconds=1.0)
    priorities = itertools.cycle((Priority.LOW, Priority.HIGH))
    requests = [request(tenant, priority=next(priorities)) for tenant in tenants * late]
    offered(admission, *requests)
    admission.poll(5.0)
    requests += [request(tenant, arrived=5.0) for tenant in tenants * on_time]
    offered(admission, *requests[len(tenants) * late :], now=5.0)
    admission.ended(running, 5.0, output_tokens=50)
    return admission, requests


def test_of_a_tenant_late_ones_go_in_one_of_16_turns_and_the_oldest_first() -> None:
    admission, requests = late_and_on_time("a", late=20, on_time=160)
    order = served(admission, requests, 160, now=5.0)
    late = [one for one in order if one.arrived < 5.0]
    assert late == requests[:9]
    places = [one.arrived < 5.0 for one in order]
    assert all(any(places[begin : begin + 17]) for begin in range(len(places) - 17))


def test_late_ones_of_one_tenant_delay_no_other() -> None:
    admission, requests = late_and_on_time("ab", late=20, on_time=0)
    others = [request("c", arrived=5.0) for _ in range(20)]
    offered(admission, *others, now=5.0)
    order = served(admission, requests + others, 30, now=5.0)
    assert Counter(one.share.tenant for one in order) == {"a": 10, "b": 10, "c": 10}


def test_work_of_other_tenants_and_of_lower_priorities_is_not_ahead() -> None:
    admission, _ = busy()
    flood = [request("flood") for _ in range(10)]
    offered(admission, *flood)
    waiting, each = admission._waiting, admission.work(flood[0])
    assert waiting.ahead(Share("flood"), Priority.NORMAL) == pytest.approx(10 * each)
    assert waiting.ahead(Share("flood"), Priority.HIGH) == 0.0
    assert waiting.ahead(Share("new"), Priority.NORMAL) == 0.0
    offered(admission, request("new"))
    assert waiting.ahead(Share("new"), Priority.NORMAL) == pytest.approx(2 * each)


def test_nothing_is_kept_of_what_came_once() -> None:
    admission, running = busy(first_token_seconds=1.0)
    admission.ended(running, 0.0, output_tokens=50)
    for number in range(3000):
        now = number / 100
        one = request(f"tenant {number}", arrived=now, group=RequestGroup(id=number, size=2))
        offered(admission, one, now=now)
        assert admission.poll(now).release == (one.id,)
        admission.ended(one.id, now, output_tokens=5)
    inside = admission._waiting
    assert (len(inside._tenants), len(inside._groups), len(inside._waiting)) == (0, 0, 0)
    assert len(inside._reviews) < 100
    assert len(inside.queue._tenants) < 500
    assert next(NUMBERS) > 3000
