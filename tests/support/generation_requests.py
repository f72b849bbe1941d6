"""Requests for generated text, and admissions in front of a server that has its share of them."""

import itertools

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_scheduling.generation.admission import (
    Admission,
    AdmissionSettings,
    GenerationRequest,
)
from batchedmodel_scheduling.generation.requests import AtOnce
from batchedmodel_scheduling.queue.items import Priority, RequestGroup

NUMBERS = itertools.count()


def request(
    tenant: str = "a",
    *,
    arrived: float = 0.0,
    patience: float = 60.0,
    key: str = "model",
    priority: Priority = Priority.NORMAL,
    group: RequestGroup | None = None,
    prompt: int = 100,
    most: float = 1.0,
    choices: int = 1,
    at_once: AtOnce | None = None,
    whole: bool = False,
    least: int = 1,
) -> GenerationRequest:
    return GenerationRequest(
        id=next(NUMBERS), share=Share(tenant, most=most), key=key, prompt_tokens=prompt,
        max_tokens=50, choices=choices, arrived=arrived, deadline=arrived + patience,
        streams=True, priority=priority, group=group, at_once=at_once,
        whole=whole, least_tokens=least,
    )  # fmt: skip


def offered(admission: Admission, *requests: GenerationRequest, now: float = 0.0) -> None:
    for one in requests:
        assert admission.offer(one, now) is None


def one_at_a_time(admission: Admission, now: float = 0.0) -> list[int]:
    """The order in which all leave if each ends before the next."""
    order: list[int] = []
    while (grant := admission.poll(now)).release:
        for number in grant.release:
            order.append(number)
            admission.ended(number, now, output_tokens=50)
    return order


def busy(limit: int = 1, **others: object) -> tuple[Admission, int]:
    """An admission with a server that has all it may; and what runs there."""
    admission = Admission(AdmissionSettings(max_concurrent_requests=limit, **others))  # type: ignore[arg-type]
    first = request("somebody")
    offered(admission, first)
    assert admission.poll(0.0).release == (first.id,)
    return admission, first.id


def experienced(settings: AdmissionSettings) -> Admission:
    """One that has served for a minute: 8 at once, each a second, first tokens after 20 ms."""
    admission = Admission(settings)
    for second in range(60):
        now = second * 1.0
        for _ in range(8):
            offered(admission, request("before", arrived=now), now=now)
        released = admission.poll(now).release
        for number in released:
            admission.first_token(number, now + 0.02)
        for piece in range(1, 50):
            for number in released:
                admission.tokens(number, 1, now + 0.02 * (piece + 1))
            admission.poll(now + 0.02 * (piece + 1))
        for number in released:
            admission.ended(number, now + 1.0, output_tokens=50)
    return admission
