"""The limit of what is at an upstream server: given, from gauges, streams, or completions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_scheduling.generation.admission import Admission
from batchedmodel_scheduling.generation.at_server import AtServer, Load
from batchedmodel_scheduling.generation.requests import AdmissionSettings, EngineView, Waiting
from batchedmodel_scheduling.generation.upstream_engine import UpstreamEngine
from batchedmodel_scheduling.queue.shared_room import SharedRoom
from support.generation_requests import offered, request

SPAN = 0.25


def engine(given: int | None = None, token_target: float | None = None) -> UpstreamEngine:
    settings = AdmissionSettings(max_concurrent_requests=given, token_seconds=token_target)
    return UpstreamEngine(settings, AtServer(SharedRoom(1)))


def load(
    taken: float,
    *,
    running: float | None = None,
    streams: bool = True,
    completed: int = 0,
    token: float = 0.02,
) -> Load:
    """A span in which the server ran so many of those it had."""
    running = taken if running is None else running
    return Load(
        seconds=SPAN, taken=taken, streams=taken if streams else 0.0,
        generating=running if streams else 0.0, started=2, prompt_tokens=200,
        tokens=round(running * SPAN / token) if streams else 0,
        whole_seconds=0.0, whole_tokens=0, completed=completed,
    )  # fmt: skip


def looked(limits: UpstreamEngine, seen: Load, now: float, *, pressed: bool) -> None:
    """The server did so much in a span in and before which others waited, if `pressed`."""
    limits._pressed = limits._pressed_before = pressed
    limits._adapt(seen, now)


def viewed(limits: UpstreamEngine, running: int, waiting: int, now: float) -> None:
    """The gauges are read, and looked at."""
    limits.saw(EngineView(running=running, waiting=waiting), now)
    looked(limits, load(limits.limit, streams=False), now, pressed=False)


def after(
    limits: UpstreamEngine, seconds: float, *, places: int, token: float = 0.02
) -> UpstreamEngine:
    """So long before a server with so many places and always more to do."""
    for number in range(int(seconds / SPAN)):
        seen = load(limits.limit, running=min(places, limits.limit), token=token)
        looked(limits, seen, number * SPAN, pressed=True)
    return limits


@given(st.integers(1, 5000), st.lists(st.integers(0, 5000), max_size=30))
def test_what_is_given_stays(given: int, events: list[int]) -> None:
    limits = engine(given)
    for now, number in enumerate(events):
        viewed(limits, number, number, now)
        looked(limits, load(number, running=number / 2, token=1.0), now, pressed=True)
        assert limits.limit == given


def test_joiners_at_a_server_with_places_are_no_queue() -> None:
    limits = engine()
    for now, (running, waiting) in enumerate([(8, 3), (6, 2), (8, 3), (5, 3), (4, 4), (5, 3)]):
        viewed(limits, running, waiting, now * 0.5)
    assert limits.limit == 16
    for now in range(6):
        viewed(limits, 8, 9, 10 + now * 0.5)
    assert limits.limit == 9


def test_more_that_wait_than_run_are_a_queue_though_the_limit_is_far() -> None:
    limits = after(engine(), 3.0, places=10_000)
    assert limits.limit >= 64
    limits = engine()
    for now in range(3):
        viewed(limits, 8, 20, 10 + now * 0.5)
    assert limits.limit == 9


def test_it_starts_at_16_and_doubles_each_second_while_more_would_go() -> None:
    limits = engine()
    assert limits.limit == 16
    seen = []
    for number in range(40):
        looked(limits, load(limits.limit), number * SPAN, pressed=True)
        seen.append(limits.limit)
    assert sorted(set(seen))[:4] == [32, 64, 128, 256]
    assert seen[-1] > 400


def test_once_it_was_too_much_it_grows_by_an_eighth() -> None:
    limits = engine()
    for number in range(3):
        viewed(limits, 8, 9, float(number))
    assert limits.limit == 9
    seen = []
    for number in range(400):
        now = 3.0 + number * SPAN
        viewed(limits, limits.limit, 0, now)
        looked(limits, load(limits.limit, streams=False), now, pressed=True)
        seen.append(limits.limit)
    assert seen[-1] > 40
    assert all(b - a <= max(1, a // 8) for a, b in pairwise(seen))


def test_where_no_request_waits_here_no_more_is_tried() -> None:
    limits = engine()
    for number in range(100):
        looked(limits, load(16), number * SPAN, pressed=False)
    assert limits.limit == 16


@pytest.mark.parametrize("places", [1, 4, 30, 64, 250])
def test_streams_show_how_many_places_there_are(places: int) -> None:
    limit = after(engine(), 60, places=places).limit
    assert places <= limit <= places + max(3, places // 4)


@pytest.mark.parametrize("places", [1, 4, 30, 64, 250])
def test_gauges_show_how_many_places_there_are(places: int) -> None:
    limits = engine()
    for number in range(240):
        now, running = number * SPAN, min(places, limits.limit)
        viewed(limits, running, limits.limit - running, now)
        looked(limits, load(limits.limit, streams=False), now, pressed=True)
    assert places <= limits.limit <= places + max(2, places // 5)


def test_a_full_cache_needs_no_more() -> None:
    limits = engine()
    for number in range(40):
        limits.saw(EngineView(running=16, waiting=0, cache_usage=0.96), number * SPAN)
        looked(limits, load(16), number * SPAN, pressed=True)
    assert limits.limit == 16


def test_gauges_that_are_heard_no_more_count_no_more() -> None:
    limits = engine()
    limits.saw(EngineView(running=16, waiting=0, cache_usage=0.96), 0.0)
    for number in range(80):
        looked(limits, load(limits.limit), number * SPAN, pressed=True)
    assert limits.limit > 30


def test_what_waits_for_one_look_only_is_no_queue() -> None:
    limits = engine()
    for number in range(40):
        viewed(limits, 16, 9 * (number % 2), number * 1.0)
    assert limits.limit == 16


def test_tokens_that_come_too_slowly_make_it_less_until_they_do_not() -> None:
    limits = engine(token_target=0.04)
    for number in range(200):
        seen = load(limits.limit, token=0.004 * limits.limit)
        looked(limits, seen, number * SPAN, pressed=True)
    assert 8 <= limits.limit <= 10


def test_it_does_not_grow_while_tokens_are_nearly_too_slow() -> None:
    limits = after(engine(token_target=0.04), 20, places=64, token=0.037)
    assert limits.limit == 16


def test_never_below_one() -> None:
    limits = engine(token_target=0.002)
    for number in range(200):
        seen = load(limits.limit, token=0.01 * limits.limit)
        looked(limits, seen, number * SPAN, pressed=True)
    assert limits.limit == 1


def test_a_target_that_fewer_do_not_bring_nearer_takes_no_places() -> None:
    limits, seen = engine(token_target=0.01), []
    for number in range(1200):
        running = min(64, limits.limit)
        looked(limits, load(limits.limit, running=running, token=0.1), number * SPAN, pressed=True)
        seen.append(limits.limit)
    assert sum(min(64, limit) for limit in seen[400:]) >= 0.9 * 64 * 800


def test_a_target_is_not_given_up_while_those_that_are_to_be_fewer_run_on() -> None:
    """Answers of a minute: four seconds behind a lower limit as many run, as slowly."""
    limits, running = engine(token_target=0.04), 16.0
    for number in range(2400):
        running = max(min(running, limits.limit), running - SPAN * running / 60.0)
        if running < limits.limit:
            running = float(limits.limit)
        looked(limits, load(running, token=0.01 + 0.001 * running), number * SPAN, pressed=True)
        assert limits.limit <= 64
    assert 20 <= limits.limit <= 30


@pytest.mark.parametrize("before_the_look", [0.03, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("earlier", [0, 1, 4])
@pytest.mark.parametrize("arriving", [2, 4, 64])
def test_many_that_come_just_before_a_look_make_it_no_less(
    before_the_look: float, earlier: int, arriving: int
) -> None:
    """The means of that span are not of what runs: the limit fell from 16 to 3.

    `arriving`: how many the engine takes in a step of 20 ms.
    """
    admission = Admission(AdmissionSettings())
    had, sent, limits = dict[int, int](), list[int](), list[int]()
    for step in range(250):
        now = 0.01 * step
        if step in (0, round(100 - 100 * before_the_look)):
            count = 96 if step else earlier
            offered(admission, *[request("a", arrived=now) for _ in range(count)], now=now)
        if step % 2 == 0:
            for number in list(had):
                had[number] += 1
                if had[number] == 1:
                    admission.first_token(number, now)
                elif had[number] <= 40:
                    admission.tokens(number, 1, now)
                else:
                    del had[number]
                    admission.ended(number, now, output_tokens=40)
                    offered(admission, request("a", arrived=now), now=now)
            for _ in range(min(arriving, len(sent), 64 - len(had))):
                had[sent.pop(0)] = 0
        sent += admission.poll(now).release
        limits.append(admission.limit)
    assert min(limits) >= 14
    assert limits[-1] > 16


def test_a_stream_that_few_later_ones_overtook_still_waits() -> None:
    """Two engines behind one address: the slow one reads its own later, and more must not go."""
    server = AtServer(SharedRoom(100))
    streams = [request("a") for _ in range(8)]
    for one in streams:
        server.released(Waiting(one, work=1.0, target=None), 0.0)
    for one in streams[4:]:
        server.first_token(one.id, 1.0)
    server.set_overtaken_aside()
    assert len(server.unread) == 4
    for one in [request("a") for _ in range(4)]:
        server.released(Waiting(one, work=1.0, target=None), 1.0)
        server.first_token(one.id, 2.0)
        server.ended(one.id, 2.0)
    server.set_overtaken_aside()
    assert not server.unread, "as many as are here began since they went"


def test_while_no_stream_begins_one_more_may_be_there_every_two_seconds() -> None:
    limits = after(engine(), 30, places=4)
    before = limits._unstarted
    silent = load(before, running=0.0)._replace(started=0)
    for number in range(8):
        looked(limits, silent, 40.0 + number * SPAN, pressed=True)
    assert limits._unstarted <= before + 1
    for number in range(80):
        looked(limits, silent, 42.0 + number * SPAN, pressed=True)
    assert before < limits._unstarted <= before + 1, "as no more are there"


@pytest.mark.parametrize("prompt", [100, 6000])
def test_streams_of_one_tenant_that_never_begin_stop_no_others(prompt: int) -> None:
    """Before an engine of 16 places, of 40 tokens each: 20 answers a second at most."""
    admission = Admission(AdmissionSettings())
    silent = [request("silent", prompt=prompt, patience=600.0) for _ in range(8)]
    offered(admission, *silent)
    others = [request("other", prompt=prompt) for _ in range(48)]
    offered(admission, *others)
    numbers, sent = {one.id for one in silent}, list[int]()
    had, answers = dict[int, int](), list[float]()
    for step in range(3000):
        now = 0.02 * step
        sent += [number for number in admission.poll(now).release if number not in numbers]
        while sent and len(had) < 16:
            had[sent.pop(0)] = 0
        for number in list(had):
            had[number] += 1
            if had[number] == 2:
                admission.first_token(number, now)
            elif had[number] > 2:
                admission.tokens(number, 1, now)
            if had[number] == 41:
                del had[number]
                admission.ended(number, now, output_tokens=40)
                answers.append(now)
                offered(admission, request("other", prompt=prompt, arrived=now), now=now)
    assert sum(at >= 30.0 for at in answers) >= 0.9 * 20 * 30


def test_never_above_4096() -> None:
    assert after(engine(), 200, places=100_000).limit == 4096


@pytest.mark.parametrize("places", [20, 40, 100])
def test_where_nothing_streams_it_grows_while_more_of_them_complete_more(places: int) -> None:
    limits, left = engine(), 0.0
    for number in range(2400):
        left += min(places, limits.limit) * SPAN / 0.8
        seen = load(limits.limit, streams=False, completed=int(left))
        looked(limits, seen, number * SPAN, pressed=True)
        left -= int(left)
    assert 0.8 * places <= limits.limit <= 1.3 * places


def test_other_settings_keep_what_was_learnt() -> None:
    limits = after(engine(), 30, places=64)
    learnt = limits.limit
    limits.configure(AdmissionSettings(token_seconds=0.1))
    assert limits.limit == learnt
    limits.configure(AdmissionSettings(max_concurrent_requests=5))
    assert limits.limit == 5
