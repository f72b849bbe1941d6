"""Who leads, in numbers only: electors whose messages are lost or come late."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_kube.elector import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Elector,
    Record,
)
from support.examples import examples


class Lease:
    """The API server's: whoever writes must have read the present version."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self._versions = 0

    def write(self, claim: Record) -> bool:
        version = "" if self.record is None else self.record.version
        if claim.version != version:
            return False
        self._versions += 1
        self.record = Record(
            holder=claim.holder,
            version=str(self._versions),
            transitions=claim.transitions,
            acquired=claim.acquired or "then",
        )
        return True


def _try(elector: Elector, lease: Lease, now: float) -> None:
    claim = elector.step(lease.record, now)
    if claim is not None and lease.write(claim):
        elector.confirmed(now)


def test_the_first_to_come_leads_at_once() -> None:
    lease, first, second = Lease(), Elector("a"), Elector("b")
    _try(first, lease, 0.0)
    _try(second, lease, 0.1)
    assert first.remaining(0.1) > 0
    assert second.remaining(0.1) == 0


def test_a_holder_that_renews_keeps_the_lease_and_its_time() -> None:
    lease, first, second = Lease(), Elector("a"), Elector("b")
    for now in range(0, 60, 2):
        _try(first, lease, float(now))
        _try(second, lease, now + 0.5)
        assert first.remaining(now + 1.9) > 0
        assert second.remaining(now + 1.9) == 0
    assert lease.record is not None
    assert (lease.record.transitions, lease.record.acquired) == (0, "then")


def test_a_holder_that_falls_silent_leads_no_more_before_another_does() -> None:
    lease, first, second = Lease(), Elector("a"), Elector("b")
    _try(first, lease, 0.0)
    assert first.remaining(RENEW_SECONDS) == 0
    _try(second, lease, 1.0)
    _try(second, lease, 1.0 + LEASE_SECONDS - 0.1)
    assert second.remaining(1.0 + LEASE_SECONDS) == 0
    _try(second, lease, 1.0 + LEASE_SECONDS)
    assert second.remaining(1.0 + LEASE_SECONDS) == RENEW_SECONDS
    assert lease.record is not None
    assert lease.record.transitions == 1


def test_a_lease_that_was_given_back_is_taken_at_the_next_try() -> None:
    lease, first, second = Lease(), Elector("a"), Elector("b")
    _try(first, lease, 0.0)
    _try(second, lease, 0.5)
    claim = first.resign(lease.record)
    assert claim is not None
    assert first.remaining(0.6) == 0
    assert lease.write(claim)
    _try(second, lease, 2.5)
    assert second.remaining(2.5) > 0


def test_nobody_gives_back_what_is_anothers() -> None:
    lease, first, second = Lease(), Elector("a"), Elector("b")
    _try(first, lease, 0.0)
    assert second.resign(lease.record) is None
    assert second.resign(None) is None


def test_who_sees_another_holder_stops_at_once() -> None:
    lease, first = Lease(), Elector("a")
    _try(first, lease, 0.0)
    lease.record = Record(holder="b", version="77")
    assert first.step(lease.record, 2.0) is None
    assert first.remaining(2.0) == 0


def test_a_lease_that_is_deleted_is_not_taken_from_a_holder_who_does_not_know() -> None:
    lease, first, second = Lease(), Elector("a"), Elector("b")
    _try(first, lease, 0.0)
    _try(second, lease, 0.1)
    lease.record = None
    assert second.step(None, 1.0) is None
    _try(first, lease, 2.0)
    assert lease.record is not None
    assert first.remaining(2.0) > 0


def test_who_never_read_a_lease_that_is_deleted_takes_it_until_the_holder_next_tries() -> None:
    lease, first, newcomer = Lease(), Elector("a"), Elector("b")
    _try(first, lease, 0.0)
    lease.record = None
    _try(newcomer, lease, 0.1)
    assert first.remaining(RETRY_SECONDS - 0.1) > 0
    assert newcomer.remaining(RETRY_SECONDS - 0.1) > 0
    _try(first, lease, RETRY_SECONDS)
    assert first.remaining(RETRY_SECONDS) == 0
    assert newcomer.remaining(RETRY_SECONDS) > 0


def test_who_finds_a_claim_of_its_own_leads_as_if_it_had_been_answered() -> None:
    lease, slow, other = Lease(), Elector("a"), Elector("b")
    for now in range(0, 60, 3):
        claim = slow.step(lease.record, float(now))
        assert claim is not None
        assert lease.write(claim), "of which it never hears"
        _try(other, lease, now + 1.0)
        assert other.remaining(now + 1.0) == 0
        if now:
            assert slow.remaining(now + 2.9) > 0


def test_of_claims_that_were_not_answered_the_first_may_be_the_one_that_was_written() -> None:
    lease, slow = Lease(), Elector("a")
    first = slow.step(lease.record, 0.0)
    assert first is not None
    assert slow.step(lease.record, 3.0) is not None, "which does not arrive"
    assert lease.write(first)
    slow.step(lease.record, 6.0)
    assert slow.remaining(6.0) == RENEW_SECONDS - 6.0


@dataclass(slots=True)
class _Message:
    """What becomes of one try of an elector."""

    elector: int
    pause: float
    """Seconds since the try before, of whomever."""
    answered: float
    """Seconds from the step to the write's arrival."""
    fate: str


_FATES = ("good", "good", "good", "no read", "no write", "no answer", "resign")
_MESSAGES = st.lists(
    st.builds(
        _Message,
        elector=st.integers(0, 1),
        pause=st.integers(0, 6).map(float),
        answered=st.sampled_from([0.0, 0.5, 3.0, 12.0]),
        fate=st.sampled_from(_FATES),
    ),
    max_size=25,
)


@dataclass(slots=True)
class _World:
    lease: Lease = field(default_factory=Lease)
    electors: list[Elector] = field(default_factory=lambda: [Elector(name) for name in "ab"])
    under_way: list[tuple[float, int, float, Record, str]] = field(default_factory=list)
    """Writes: when they arrive, whose, when they were decided, what, and their fate."""

    def arrive(self, until: float) -> None:
        for write in sorted(one for one in self.under_way if one[0] <= until):
            self.under_way.remove(write)
            at, elector, stepped, claim, fate = write
            self.check(at)
            if fate != "no write" and self.lease.write(claim) and fate == "good":
                self.electors[elector].confirmed(stepped)
            self.check(at)

    def check(self, now: float) -> None:
        leaders = [one for one in self.electors if one.remaining(now) > 0]
        assert len(leaders) <= 1


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(messages=_MESSAGES)
def test_of_a_lease_that_nobody_deletes_there_are_never_two_leaders_whatever_is_lost_or_late(
    messages: list[_Message],
) -> None:
    world, now = _World(), 0.0
    busy_until = [0.0, 0.0]
    for number, message in enumerate(messages):
        now += message.pause
        world.arrive(now)
        elector = world.electors[message.elector]
        if message.fate == "no read" or busy_until[message.elector] > now:
            continue
        record = world.lease.record
        resigns = message.fate == "resign"
        claim = elector.resign(record) if resigns else elector.step(record, now)
        world.check(now)
        if claim is not None:
            arrives = now + message.answered
            if message.fate == "good":
                busy_until[message.elector] = arrives
            # Any other answer is not waited for: the next try comes before the write arrives.
            fate = "no answer" if resigns else message.fate
            # The number only keeps the order strict.
            write = (arrives + number * 1e-9, message.elector, now, claim, fate)
            world.under_way.append(write)
    world.arrive(now + 100)
