"""Who asked lately is known for a second, and of no more than a thousand."""

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.telemetry.ledger import RecentCallers

A, B = Share("a"), Share("b", weight=2.0)


def test_a_caller_is_known_for_a_second_after_its_last_call() -> None:
    recent = RecentCallers()
    recent.asks(A, 0.0)
    recent.asks(B, 0.5)
    assert set(recent.at(0.9)) == {A, B}
    assert set(recent.at(1.2)) == {B}
    recent.asks(B, 1.4)
    assert set(recent.at(2.0)) == {B}


def test_of_many_the_latest_are_known() -> None:
    recent = RecentCallers()
    for number in range(5_000):
        recent.asks(Share(f"c{number}"), 0.0)
    known = list(recent.at(0.1))
    assert len(known) == 1_000
    assert known[-1] == Share("c4999")
