"""What is admitted, in which order, what is refused, and what the engine's answers change."""

import pytest

from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    EngineView,
    Shed,
)
from batchedmodel_scheduling.queue.items import NEVER, Priority, RequestGroup
from support.generation_requests import busy, experienced, offered, one_at_a_time, request
from support.steps import steps


def test_an_empty_one_waits_for_events_only() -> None:
    grant = Admission(AdmissionSettings()).poll(1.0)
    assert (grant.release, grant.shed, grant.wake_at) == ((), (), NEVER)


def test_all_that_have_a_place_go_at_once_and_the_rest_when_one_ends() -> None:
    admission = Admission(AdmissionSettings(max_concurrent_requests=2))
    requests = [request() for _ in range(3)]
    offered(admission, *requests)
    grant = admission.poll(0.0)
    assert grant.release == tuple(one.id for one in requests[:2])
    assert admission.poll(0.1).release == ()
    assert (admission.running, admission.waiting) == (2, 1)
    admission.ended(requests[0].id, 0.2, output_tokens=5)
    assert admission.poll(0.2).release == (requests[2].id,)


def test_nothing_goes_to_a_server_that_is_away_and_what_is_too_late_is_told_so() -> None:
    admission = Admission(AdmissionSettings())
    short, long = request(patience=1.0), request()
    offered(admission, short, long)
    assert admission.poll(0.5, is_open=False).release == ()
    grant = admission.poll(1.0, is_open=False)
    assert grant.release == ()
    assert grant.shed == (Shed(short.id, Outcome.EXPIRED),)
    assert admission.poll(1.1).release == (long.id,)


def test_within_a_tenant_priority_goes_before_arrival() -> None:
    admission, running = busy()
    low, normal, high = (request(priority=one) for one in reversed(Priority))
    offered(admission, low, normal, high)
    admission.ended(running, 0.0, output_tokens=5)
    assert one_at_a_time(admission) == [high.id, normal.id, low.id]


def test_a_priority_goes_before_nobody_of_another_tenant() -> None:
    admission, running = busy()
    high = [request("a", priority=Priority.HIGH) for _ in range(4)]
    low = [request("b", priority=Priority.LOW) for _ in range(4)]
    offered(admission, *high, *low)
    admission.ended(running, 0.0, output_tokens=5)
    order = one_at_a_time(admission)
    assert {order[0], order[1]} == {high[0].id, low[0].id}


def test_a_short_deadline_goes_first_within_its_tenant_only() -> None:
    admission, running = busy()
    patient = [request("a") for _ in range(2)]
    hasty = [request("b", patience=0.5) for _ in range(2)] + [request("a", patience=0.5)]
    offered(admission, *patient, *hasty)
    admission.ended(running, 0.0, output_tokens=5)
    order = one_at_a_time(admission)
    of_a = [number for number in order if number not in (hasty[0].id, hasty[1].id)]
    assert of_a == [hasty[2].id, patient[0].id, patient[1].id]
    assert order.index(hasty[1].id) in (2, 3)


def test_calls_of_a_group_go_together_while_one_of_them_runs() -> None:
    admission, running = busy(limit=2)
    group = RequestGroup(id="agent", size=3)
    first, other = request(group=group), request(arrived=0.2, group=group)
    stranger = request(arrived=0.1)
    same_name = request("b", arrived=0.3, group=group)
    offered(admission, first)
    assert admission.poll(0.0).release == (first.id,)
    offered(admission, stranger, other, same_name)
    admission.ended(running, 0.0, output_tokens=5)
    order = one_at_a_time(admission)
    assert order.index(other.id) < order.index(stranger.id)


def test_what_missed_its_deadline_has_expired_on_time() -> None:
    admission, _ = busy()
    hasty = request(patience=2.0)
    offered(admission, hasty)
    assert admission.poll(1.0).wake_at == 2.0
    grant = admission.poll(2.0)
    assert grant.shed == (Shed(hasty.id, Outcome.EXPIRED),)
    assert admission.waiting == 0
    assert admission.poll(2.0).shed == ()


def test_late_ones_are_served_when_nobody_else_waits() -> None:
    admission, running = busy(first_token_seconds=1.0)
    late = request()
    offered(admission, late)
    admission.poll(3.0)
    fresh = request(arrived=3.0)
    offered(admission, fresh, now=3.0)
    admission.ended(running, 3.0, output_tokens=5)
    assert one_at_a_time(admission, 3.0) == [fresh.id, late.id]


def test_late_ones_are_given_up_where_the_settings_refuse_them() -> None:
    admission, _ = busy(first_token_seconds=1.0, lateness=Lateness.REFUSE)
    late = request()
    offered(admission, late)
    wake_at = admission.poll(0.0).wake_at
    assert 0.5 <= wake_at <= 1.0
    assert admission.poll(wake_at).shed == (Shed(late.id, Outcome.SHED),)


def test_what_would_be_late_is_refused_where_the_settings_say_so() -> None:
    admission = experienced(
        AdmissionSettings(
            max_concurrent_requests=8, first_token_seconds=1.0, lateness=Lateness.REFUSE
        )
    )
    refused = None
    for _ in range(200):
        refused = admission.offer(request(arrived=60.0), 60.0)
        admission.poll(60.0)
        if refused is not None:
            break
    assert refused is not None
    assert refused.reason is Rejection.PREDICTED_LATE
    assert refused.retry_after >= 1.0
    assert 3 <= admission.waiting <= 16


def test_a_hopeless_deadline_is_refused_at_once() -> None:
    admission = experienced(AdmissionSettings(max_concurrent_requests=8))
    offered(admission, *(request(arrived=60.0) for _ in range(80)), now=60.0)
    admission.poll(60.0)
    hopeless = admission.offer(request(arrived=60.0, patience=0.5), 60.0)
    assert hopeless is not None
    assert hopeless.reason is Rejection.PREDICTED_LATE
    assert admission.offer(request(arrived=60.0, patience=30.0), 60.0) is None
    assert admission.offer(request("other", arrived=60.0, patience=0.5), 60.0) is None


def test_nothing_is_hopeless_before_anything_was_learnt_or_on_an_idle_server() -> None:
    admission, _ = busy()
    offered(admission, *(request(patience=0.001) for _ in range(50)))
    idle = experienced(AdmissionSettings(max_concurrent_requests=8))
    offered(idle, request(arrived=60.0, patience=0.0001), now=60.0)


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    admission, _ = busy(max_queue_size=16)
    refused = None
    while refused is None:
        refused = admission.offer(request(), 0.0)
    assert refused.reason is Rejection.QUEUE_FULL
    assert 1.0 <= refused.retry_after <= 600.0
    assert admission.refusal(Share("a"), 0.0) == refused
    assert admission.refusal(Share("b"), 0.0) is None


def test_a_tenant_over_its_share_is_told_so() -> None:
    admission, _ = busy(max_queue_size=100)
    for _ in range(10):
        offered(admission, request(most=0.1))
    refused = admission.offer(request(most=0.1), 0.0)
    assert refused is not None
    assert refused.reason is Rejection.OVER_SHARE


def test_in_a_full_queue_a_late_one_makes_room_for_one_on_time_of_its_tenant() -> None:
    admission, _ = busy(max_queue_size=16, first_token_seconds=1.0)
    late = [request(priority=one) for one in Priority]
    offered(admission, *late)
    while admission.offer(request(), 0.0) is None:
        pass
    admission.poll(2.0)
    fresh = request(arrived=2.0)
    assert admission.refusal(fresh.share, 2.0) is None
    waited = admission.waiting
    offered(admission, fresh, now=2.0)
    assert admission.waiting == waited
    assert admission.poll(2.0).shed == (Shed(late[2].id, Outcome.EVICTED),)


def test_who_was_given_up_and_left_before_it_was_told_is_told_nothing() -> None:
    admission, _ = busy(max_queue_size=4, first_token_seconds=1.0)
    late = request()
    offered(admission, late)
    while admission.offer(request(), 0.0) is None:
        pass
    admission.poll(2.0)
    offered(admission, request(arrived=2.0), now=2.0)
    evicted = admission._waiting._shed[0].request_id
    admission.withdraw(evicted, 2.0)
    assert admission.poll(2.0).shed == ()


def test_who_left_is_not_served_and_unknown_ones_are_ignored() -> None:
    admission, running = busy()
    gone = request()
    offered(admission, gone)
    admission.withdraw(gone.id, 0.1)
    admission.withdraw(gone.id, 0.1)
    admission.withdraw(running, 0.1)
    assert (admission.waiting, admission.running) == (0, 1)
    admission.ended(running, 0.2, output_tokens=None)
    admission.ended(running, 0.2, output_tokens=None)
    admission.first_token(running, 0.2)
    admission.tokens(running, 3, 0.2)
    assert admission.poll(0.2).release == ()
    assert admission.backlog_work == 0.0


def test_what_came_back_goes_first_after_its_key_has_rested() -> None:
    admission, running = busy(limit=2)
    first, second = request(key="tuned"), request(key="tuned")
    other = request(key="base")
    offered(admission, first)
    assert admission.poll(0.0).release == (first.id,)
    offered(admission, second)
    admission.came_back(first.id, 0.1, rest_seconds=2.0)
    grant = admission.poll(0.1)
    assert grant.wake_at == pytest.approx(2.1)
    offered(admission, other, now=0.2)
    assert admission.poll(0.2).release == (other.id,)
    admission.ended(other.id, 0.3, output_tokens=5)
    admission.ended(running, 0.3, output_tokens=5)
    assert admission.poll(2.1).release == (first.id, second.id)


def test_parked_ones_expire_and_may_leave_as_others_do() -> None:
    admission, _ = busy(limit=3)
    requests = [request(key="tuned", patience=1.0) for _ in range(2)]
    offered(admission, *requests)
    admission.poll(0.0)
    for one in requests:
        admission.came_back(one.id, 0.1, rest_seconds=5.0)
    admission.poll(0.1)
    admission.withdraw(requests[0].id, 0.2)
    assert admission.poll(1.0).shed == (Shed(requests[1].id, Outcome.EXPIRED),)
    assert admission.waiting == 0


def test_what_the_server_refuses_of_one_tenant_rests_no_text_of_another() -> None:
    """Catches one tenant without quota, by one text now and then, keeping all others waiting."""
    admission = Admission(AdmissionSettings(max_concurrent_requests=8))
    refused, own, other = request("a"), request("a"), request("b")
    offered(admission, refused)
    admission.poll(0.0)
    admission.came_back(refused.id, 0.1, rest_seconds=5.0)
    offered(admission, own, other, now=0.2)
    assert admission.poll(0.2).release == (other.id,)
    assert set(admission.poll(5.1).release) == {refused.id, own.id}


def test_a_server_that_refuses_100_tenants_is_tried_once_by_each_while_it_wants_to_rest() -> None:
    """Catches rests that end for those of other tenants: it had 1,376 tries in a second."""
    admission = Admission(AdmissionSettings(max_concurrent_requests=16))
    offered(admission, *(request(f"tenant {number % 100}") for number in range(500)))
    tries = 0
    for now in range(100):
        released = admission.poll(now / 100).release
        tries += len(released)
        for number in released:
            admission.came_back(number, now / 100, rest_seconds=5.0)
    assert tries <= 100 + 16, "and by those that were there meanwhile"


def test_at_most_256_keys_rest() -> None:
    admission = Admission(AdmissionSettings(max_concurrent_requests=1000))
    requests = [request(key=f"adapter {number}") for number in range(300)]
    offered(admission, *requests)
    admission.poll(0.0)
    for number, one in enumerate(requests):
        admission.came_back(one.id, 0.0, rest_seconds=100.0 + number)
    assert len(admission.poll(0.0).release) == 44


def test_other_settings_count_at_once_and_what_waits_stays() -> None:
    admission, _ = busy(max_queue_size=100)
    offered(admission, *(request() for _ in range(50)))
    admission.configure(
        AdmissionSettings(
            max_concurrent_requests=11, first_token_seconds=1.0, lateness=Lateness.REFUSE,
            max_queue_size=8,
        ),
        0.1,
    )  # fmt: skip
    assert admission.waiting == 50
    assert admission.offer(request(), 0.1) is not None
    assert len(admission.poll(0.1).release) == 10
    assert len(admission.poll(1.0).shed) == 40
    admission.configure(AdmissionSettings(), 2.0)
    offered(admission, request(arrived=2.0), now=2.0)
    admission.poll(2.0)


def test_late_ones_are_on_time_again_when_the_target_is_taken_away() -> None:
    admission, running = busy(first_token_seconds=1.0)
    late = request()
    offered(admission, late)
    admission.poll(2.0)
    admission.configure(AdmissionSettings(max_concurrent_requests=1), 2.0)
    fresh = request(arrived=2.0)
    offered(admission, fresh, now=2.0)
    admission.ended(running, 2.0, output_tokens=5)
    assert one_at_a_time(admission, 2.0) == [late.id, fresh.id]


def test_choices_take_places_each_where_the_limit_is_learnt() -> None:
    admission = Admission(AdmissionSettings())
    offered(admission, *(request(choices=8) for _ in range(5)))
    assert len(admission.poll(0.0).release) == 2


def test_no_number_of_choices_takes_the_places_that_are_kept_for_others() -> None:
    admission = Admission(AdmissionSettings())
    many = request("a", choices=128)
    offered(admission, many, request("a", choices=128))
    assert admission.poll(0.0).release == (many.id,)
    few = request("b")
    offered(admission, few)
    assert admission.poll(0.0).release == (few.id,)
    admission.ended(many.id, 0.1, output_tokens=50)
    admission.ended(few.id, 0.1, output_tokens=50)
    assert admission.running <= 1


def test_work_grows_with_prompt_choices_and_learnt_lengths() -> None:
    admission = Admission(AdmissionSettings())
    one = admission.work(request())
    assert admission.work(request(prompt=1000)) > one
    assert admission.work(request(choices=3)) > 2 * one
    for _ in range(50):
        short = request()
        offered(admission, short)
        admission.poll(0.0)
        admission.ended(short.id, 0.0, output_tokens=5)
    assert admission.work(request()) < one / 2


def test_the_backlog_is_what_waits_and_what_is_left_of_what_runs() -> None:
    admission, running = busy()
    at_first = admission.backlog_work
    offered(admission, request())
    assert admission.backlog_work == pytest.approx(2 * at_first)
    admission.first_token(running, 0.1)
    admission.tokens(running, 40, 0.2)
    assert at_first < admission.backlog_work < 1.5 * at_first


def test_the_oldest_is_the_one_that_came_first_though_it_came_back() -> None:
    admission, running = busy()
    assert admission.oldest_age(5.0) == 0.0
    offered(admission, request(arrived=3.0), now=3.0)
    assert admission.oldest_age(5.0) == 2.0
    admission.came_back(running, 5.0, rest_seconds=1.0)
    assert admission.oldest_age(5.0) == 5.0


def test_gauges_set_the_limit() -> None:
    admission = Admission(AdmissionSettings())
    offered(admission, *(request() for _ in range(100)))
    assert len(admission.poll(0.0).release) == 16
    for number in range(1, 5):
        admission.engine(EngineView(running=4, waiting=12), number * 1.0)
        admission.poll(number * 1.0)
    assert admission.limit == 5


def test_an_event_costs_no_more_with_2000_waiting_than_with_few() -> None:
    def cost(many: int) -> int:
        admission, running = busy(max_queue_size=4096, first_token_seconds=30.0)
        offered(admission, *(request(f"tenant {number % 50}") for number in range(many)))
        admission.poll(0.0)

        def act() -> None:
            assert admission.offer(request("tenant 7"), 0.0) is None
            admission.ended(running, 0.0, output_tokens=5)
            admission.poll(0.0)

        return steps(act)

    assert cost(2000) < 2 * cost(60)


def test_counting_a_token_is_a_look_up_and_additions() -> None:
    admission, running = busy()
    admission.first_token(running, 0.1)
    assert steps(lambda: admission.tokens(running, 1, 0.2)) < 60
