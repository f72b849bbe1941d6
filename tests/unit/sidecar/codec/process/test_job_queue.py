"""The line in front of the helper: order, bounds, and what follows when the helper ends."""

from dataclasses import dataclass

from batchedmodel_contract.manifest.tenants import NOBODY, Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.codec.process.job_queue import JobQueue, patience


@dataclass(eq=False)
class Job:
    name: str
    urgent: bool = False
    losses: int = 0
    wanted: bool = True
    share: Share = NOBODY
    size: int = 1


def line_of(*jobs: Job, most: int = 10) -> JobQueue[Job]:
    line: JobQueue[Job] = JobQueue(most)
    for job in jobs:
        line.join(job)
    return line


def order(line: JobQueue[Job]) -> list[str]:
    names = []
    while (job := line.next()) is not None:
        names.append(job.name)
        line.done(0.1)
    return names


def test_answers_go_before_questions_and_each_in_their_order() -> None:
    jobs = [Job("a"), Job("b"), Job("x", urgent=True), Job("y", urgent=True)]
    assert order(line_of(*jobs)) == ["x", "y", "a", "b"]


def test_a_flood_of_answers_keeps_another_tenant_waiting_for_one_of_its_size() -> None:
    flood = [Job(f"flood {n}", urgent=True, share=Share("flood"), size=100) for n in range(8)]
    mine = Job("mine", urgent=True, share=Share("mine"), size=10)
    assert order(line_of(*flood, mine)).index("mine") == 1


def test_the_job_that_is_being_done_has_a_place_too() -> None:
    line = line_of(Job("a"), most=2)
    assert line.next() is not None
    assert line.refusal(NOBODY) is None
    line.join(Job("b"))
    assert line.refusal(NOBODY) is Rejection.QUEUE_FULL
    line.done(0.1)
    assert line.refusal(NOBODY) is None


def test_a_flood_of_bodies_keeps_another_tenant_waiting_for_one_of_its_size() -> None:
    flood = [Job(f"flood {n}", share=Share("flood"), size=100) for n in range(8)]
    others = [Job(f"mine {n}", share=Share("mine"), size=10) for n in range(12)]
    names = order(line_of(*flood, *others, most=40))
    assert names[1:11] == [f"mine {n}" for n in range(10)]
    assert sorted(names) == sorted(job.name for job in (*flood, *others))


def test_one_tenant_leaves_places_for_another() -> None:
    flood, line = Share("flood"), line_of(most=16)
    while line.refusal(flood) is None:
        line.join(Job("flood", share=flood))
    assert line.refusal(Share("mine")) is None
    line.join(Job("mine", share=Share("mine")))
    assert line.refusal(flood) is Rejection.OVER_SHARE
    assert len(order(line)) == 15
    assert line.refusal(flood) is None


def test_answers_take_no_place_from_questions() -> None:
    line = line_of(*(Job("x", urgent=True) for _ in range(5)), most=1)
    assert line.next() is not None
    assert line.refusal(NOBODY) is None


def test_a_caller_that_leaves_leaves_the_line() -> None:
    gone, stays = Job("gone"), Job("stays")
    line = line_of(gone, stays)
    line.leave(gone)
    line.leave(gone)
    assert order(line) == ["stays"]


def test_a_job_that_is_being_done_is_not_taken_back() -> None:
    job = Job("a")
    line = line_of(job, most=1)
    assert line.next() is job
    line.leave(job)
    assert line.refusal(NOBODY) is Rejection.QUEUE_FULL, "the helper is at it still"


def test_a_job_that_nobody_wants_is_not_begun() -> None:
    urgent, gone = Job("x", urgent=True, wanted=False), Job("gone", wanted=False)
    assert order(line_of(urgent, gone, Job("stays"))) == ["stays"]


def test_a_lost_job_that_nobody_wants_is_not_tried_again() -> None:
    job = Job("gone")
    line = line_of(job, Job("stays"))
    assert line.next() is job
    job.wanted = False
    assert not line.lost()
    assert order(line) == ["stays"]


def test_a_job_is_tried_by_two_helpers_and_no_more() -> None:
    job, other = Job("bad"), Job("other")
    line = line_of(job, other)
    assert line.next() is job
    assert line.lost()
    assert line.next() is job, "before those that came later"
    assert not line.lost()
    assert order(line) == ["other"]


def test_who_is_refused_is_told_to_come_when_half_of_what_waits_is_done() -> None:
    line = line_of(*(Job(str(number)) for number in range(9)))
    assert line.delay == 1.0
    assert line.next() is not None
    line.done(2.0)
    assert line.delay == 8.0


def test_a_large_body_may_take_longer() -> None:
    assert patience(0) == 10.0
    assert patience(13 << 20) == 23.0
