"""Which adapters there are and which are in memory, in virtual time."""

from collections import OrderedDict
from itertools import count
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from batchedmodel_contract.lora import AdapterPhase
from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_model_server.lora.registry import (
    AT_ONCE,
    QUIET_SECONDS,
    AdapterStore,
    Job,
    Kept,
    Roster,
)
from batchedmodel_model_server.sources.folder import Content
from support.examples import examples

LEGAL = Source(path="/adapters/legal")
HUB = Source(hugging_face=HuggingFace(repo="team/legal"))


def content(digest: str) -> Content:
    return Content(folder=Path("/adapters"), digest=digest)


def served(roster: Roster, job: Job, digest: str, now: float) -> int:
    number = roster.found(job, content(digest))
    assert number is not None
    roster.loaded(job, number)
    roster.ended(job, now)
    return number


def phases(roster: Roster) -> list[tuple[str, int, AdapterPhase]]:
    return [(one.name, one.number, one.phase) for one in roster.states()]


def test_an_adapter_is_fetched_then_read_then_served() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    (job,) = roster.begin(0.0)
    assert phases(roster) == [("legal", 1, AdapterPhase.FETCHING)]
    assert not roster.settled
    number = roster.found(job, content("a"))
    assert phases(roster) == [("legal", 1, AdapterPhase.LOADING)]
    assert number == 1
    assert roster.loaded(job, number) is None
    roster.ended(job, 1.0)
    assert phases(roster) == [("legal", 1, AdapterPhase.READY)]
    assert roster.settled
    assert roster.begin(1e9) == []


def test_a_new_version_has_a_new_number_and_the_old_one_serves_until_it_is_read() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    served(roster, roster.begin(0.0)[0], "a", 0.0)
    roster.look_again("legal", 1.0)
    (job,) = roster.begin(1.0)
    number = roster.found(job, content("b"))
    assert phases(roster) == [
        ("legal", 1, AdapterPhase.READY),
        ("legal", 2, AdapterPhase.LOADING),
    ]
    assert number is not None
    assert roster.loaded(job, number) == 1
    assert phases(roster) == [("legal", 2, AdapterPhase.READY)]


def test_files_that_are_the_same_are_not_read_again() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    served(roster, roster.begin(0.0)[0], "a", 0.0)
    roster.look_again("legal", 1.0)
    (job,) = roster.begin(1.0)
    assert roster.found(job, content("a")) is None
    roster.ended(job, 1.0)
    assert phases(roster) == [("legal", 1, AdapterPhase.READY)]


def test_a_broken_new_version_changes_nothing_for_callers_of_the_old_one() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    served(roster, roster.begin(0.0)[0], "a", 0.0)
    roster.look_again("legal", 1.0)
    (job,) = roster.begin(1.0)
    roster.found(job, content("b"))
    roster.failed(job, "rank 64 is above 16", 1.0)
    roster.ended(job, 1.0)
    old, new = roster.states()
    assert (old.number, old.phase) == (1, AdapterPhase.READY)
    assert (new.phase, new.reason) == (AdapterPhase.FAILED, "rank 64 is above 16")
    # The files come back as they were.
    roster.look_again("legal", 2.0)
    (job,) = roster.begin(2.0)
    assert roster.found(job, content("a")) is None
    assert phases(roster) == [("legal", 1, AdapterPhase.READY)]


def test_what_failed_is_tried_again_later_each_time_and_read_only_when_it_has_changed() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL, "hub": HUB}, 0.0)
    now, tries = 0.0, dict.fromkeys(("legal", "hub"), 0)
    while now < 300:
        for job in roster.begin(now):
            tries[job.name] += 1
            if job.name == "legal":
                number = roster.found(job, content("broken"))
                assert (number is None) == (tries["legal"] > 1)
                if number is not None:
                    roster.failed(job, "it is broken", now)
            else:
                roster.failed(job, "no hub answers", now)
            roster.ended(job, now)
        now += 1.0
    assert 70 <= tries["legal"] <= 80  # every four seconds
    assert 9 <= tries["hub"] <= 12  # every minute
    assert [one.phase for one in roster.states()] == [AdapterPhase.FAILED] * 2


def test_what_failed_for_a_passing_reason_is_read_again() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    (job,) = roster.begin(0.0)
    assert roster.found(job, content("a")) is not None
    roster.failed(job, "it cannot be loaded now: OSError", 0.0, passing=True)
    roster.ended(job, 0.0)
    assert roster.begin(0.9) == []
    (job,) = roster.begin(1.0)
    assert roster.found(job, content("a")) is not None


def test_hubs_that_do_not_answer_hold_up_nothing_that_is_on_a_disk() -> None:
    roster = Roster(count(1))
    roster.want({f"hub-{number}": HUB for number in range(9)}, 0.0)
    assert len(roster.begin(0.0)) == 4
    assert roster.begin(0.0) == []
    roster.want({f"hub-{number}": HUB for number in range(9)} | {"legal": LEGAL}, 1.0)
    assert [job.name for job in roster.begin(1.0)] == ["legal"]


def test_one_that_was_removed_while_it_was_read_is_not_served() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    (job,) = roster.begin(0.0)
    number = roster.found(job, content("a"))
    assert roster.want({}, 1.0) == []
    assert roster.found(job, content("a")) is None
    try:
        roster.loaded(job, number or 0)
    except KeyError:
        pass
    else:
        raise AssertionError("it is served")
    roster.ended(job, 1.0)
    assert roster.states() == ()


def test_one_with_another_source_is_looked_for_there() -> None:
    roster = Roster(count(1))
    roster.want({"legal": LEGAL}, 0.0)
    (job,) = roster.begin(0.0)
    roster.want({"legal": HUB}, 1.0)
    assert roster.found(job, content("a")) is None
    roster.ended(job, 1.0)
    (job,) = roster.begin(1.0)
    assert job.source == HUB


def test_only_so_many_are_brought_up_at_once() -> None:
    roster = Roster(count(1))
    roster.want({f"a{n}": LEGAL for n in range(3 * AT_ONCE)}, 0.0)
    jobs = roster.begin(0.0)
    assert len(jobs) == AT_ONCE
    assert roster.begin(0.0) == []
    served(roster, jobs[0], "a", 0.0)
    assert len(roster.begin(0.0)) == 1


def test_one_that_was_replaced_stays_until_nobody_has_asked_for_a_while() -> None:
    store = AdapterStore(None)
    store.add(Kept(1, content("a"), "w", 10))
    held = store.hold(1)
    assert held is not None
    store.retire([1], 0.0)
    assert store.expire(QUIET_SECONDS) == []
    store.release(held, QUIET_SECONDS)
    assert store.expire(2 * QUIET_SECONDS - 1) == []
    assert store.expire(2 * QUIET_SECONDS) == [1]
    assert store.hold(1) is None


class StoreMachine(RuleBasedStateMachine):
    """Adapters that come, are used and go; weights are the number itself."""

    def __init__(self) -> None:
        super().__init__()
        self.store = AdapterStore(20)
        self.resident: set[int] = set()
        self.held: list[Kept] = []
        self.known: OrderedDict[int, Kept] = OrderedDict()
        self.retired: set[int] = set()

    @rule(number=st.integers(1, 8), size=st.integers(1, 12))
    def add(self, number: int, size: int) -> None:
        if number not in self.known:
            self.known[number] = Kept(number, content(str(number)), number, size)
            self.store.add(self.known[number])

    @rule(number=st.integers(1, 8))
    def hold(self, number: int) -> None:
        kept = self.store.hold(number)
        assert (kept is not None) == (number in self.known)
        if kept is not None:
            kept.weights = number  # as if it were read again
            self.held.append(kept)

    @rule()
    def release(self) -> None:
        if self.held:
            self.store.release(self.held.pop(0), 0.0)

    @rule(numbers=st.sets(st.integers(1, 8), max_size=2))
    def place(self, numbers: set[int]) -> None:
        self.resident = numbers

    @rule(number=st.integers(1, 8))
    def retire(self, number: int) -> None:
        if number in self.known:
            self.store.retire([number], 0.0)
            self.retired.add(number)

    @invariant()
    def bound_holds_for_what_can_go_and_nothing_goes_that_is_needed(self) -> None:
        self.store.make_room(self.resident)
        needed = {kept.number for kept in self.held} | self.resident | self.retired
        spare = 0
        for number, kept in self.known.items():
            if number in needed and number in {one.number for one in self.held}:
                assert kept.weights is not None
            elif number not in needed and kept.weights is not None:
                spare += kept.size
        assert spare <= 20


StoreMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestStore = StoreMachine.TestCase
