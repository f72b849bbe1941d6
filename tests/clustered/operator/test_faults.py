"""An operator behind a network and an API server that misbehave: it gets there, and never spins."""

import time
from functools import partial
from pathlib import Path

import pytest

from cluster import ControlPlane
from support.faulty_proxy import Fault, FaultyProxy
from support.operator_process import OTHER_LEASE, OperatorProcess, operator
from support.operator_team import SIMULATED, Team
from support.plane import until

_NIGHTLY = pytest.mark.nightly
_OUTAGE_SECONDS = 8.0
_REQUESTS_A_SECOND = 15.0
"""Retries of some seven watches and of one model; a loop without a rest makes hundreds."""


@pytest.mark.parametrize(
    "status", [pytest.param(429, marks=_NIGHTLY), pytest.param(500, marks=_NIGHTLY), 503]
)
def test_an_edit_during_an_outage_is_applied_after_it(
    behind: OperatorProcess, proxy: FaultyProxy, team: Team, status: int
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    team.quiet()
    began = time.monotonic()
    with proxy.fault(Fault(status=status)):
        _edit(team, 7)
        time.sleep(_OUTAGE_SECONDS)
        asked = proxy.since(began)
        assert '"max_batch_size": 7' not in team.settings_file()
    print(f"{status}: {len(asked)} requests in {_OUTAGE_SECONDS:g} s")  # noqa: T201
    assert 0 < len(asked) < _OUTAGE_SECONDS * _REQUESTS_A_SECOND
    until("the edit is applied", lambda: '"max_batch_size": 7' in team.settings_file())
    team.until("Reconciled", "True", "Applied")
    assert behind.alive()


_TOO_OLD = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "metadata": {}}}\n'


@pytest.mark.parametrize(
    ("said", "a_second"),
    [
        pytest.param(b"", _REQUESTS_A_SECOND, id="nothing"),
        pytest.param(b'{"type": "ADD', _REQUESTS_A_SECOND, marks=_NIGHTLY, id="a torn line"),
        # With each list its models are looked at.
        pytest.param(_TOO_OLD, 4 * _REQUESTS_A_SECOND, marks=_NIGHTLY, id="too old"),
    ],
)
def test_watches_that_end_at_once_are_begun_anew_without_haste(
    behind: OperatorProcess, proxy: FaultyProxy, team: Team, said: bytes, a_second: float
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    team.quiet()
    with proxy.fault(Fault(watched=said)):
        proxy.end_watches()
        # What may be asked at once has been.
        time.sleep(3)
        began = time.monotonic()
        time.sleep(3)
        asked = proxy.since(began)
    print(f"watches that say {said!r}: {len(asked)} requests in 3 s")  # noqa: T201
    assert len(asked) < 3 * a_second
    _edit(team, 7)
    until("the edit is applied", lambda: '"max_batch_size": 7' in team.settings_file())
    assert behind.alive()


@_NIGHTLY
def test_a_server_that_asks_for_a_days_patience_is_asked_sooner(
    behind: OperatorProcess, proxy: FaultyProxy, team: Team
) -> None:
    with proxy.fault(Fault(status=429, retry_after="86400")):
        proxy.end_watches()
        time.sleep(3)
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    assert behind.alive()


def test_requests_that_are_never_answered_are_given_up(
    behind: OperatorProcess, proxy: FaultyProxy, team: Team
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    team.quiet()
    began = time.monotonic()
    with proxy.fault(Fault()):
        _edit(team, 8)
        # Those of this time wait for the time limit of whoever asked.
        time.sleep(3)
    until("the edit is applied", lambda: '"max_batch_size": 8' in team.settings_file(), 60)
    took = time.monotonic() - began
    asked = proxy.since(began)
    print(f"no answers: {len(asked)} requests, applied after {took:.0f} s")  # noqa: T201
    assert len(asked) < took * _REQUESTS_A_SECOND
    assert behind.alive()


@_NIGHTLY
def test_a_watch_that_falls_silent_is_noticed(
    behind: OperatorProcess, proxy: FaultyProxy, team: Team
) -> None:
    team.write(SIMULATED)
    until("all children are there", team.has_all)
    team.quiet()
    proxy.freeze_watches()
    began = time.monotonic()
    _edit(team, 9)
    until("the edit is applied", lambda: '"max_batch_size": 9' in team.settings_file(), 100)
    took = time.monotonic() - began
    asked = proxy.since(began)
    print(f"frozen watches: {len(asked)} requests, applied after {took:.0f} s")  # noqa: T201
    assert len(asked) < took * _REQUESTS_A_SECOND


@pytest.mark.parametrize("reads_pass", [False, pytest.param(True, marks=_NIGHTLY)])
def test_a_leader_that_cannot_renew_ends_and_the_next_start_goes_on(
    plane: ControlPlane, team: Team, tmp_path: Path, reads_pass: bool
) -> None:
    with FaultyProxy(plane).running() as proxy:
        with operator(
            plane, tmp_path, lease=OTHER_LEASE, server=proxy.url, may_end_with=(3,)
        ) as cut_off:
            until("it leads", lambda: cut_off.leads() is True)
            with proxy.fault(Fault(status=503, leases_too=True, reads_pass=reads_pass)):
                assert cut_off.ended(15) == 3
            assert "the lease was lost" in cut_off.log()
        with operator(plane, tmp_path, lease=OTHER_LEASE, server=proxy.url) as again:
            until("it leads", lambda: again.leads() is True)
            team.write(SIMULATED)
            until("all children are there", team.has_all)


@_NIGHTLY
def test_a_leader_whose_claims_are_answered_too_late_goes_on_leading(
    plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    with (
        FaultyProxy(plane).running() as proxy,
        operator(plane, tmp_path, lease=OTHER_LEASE, server=proxy.url) as slow,
    ):
        until("it leads", lambda: slow.leads() is True)
        team.write(SIMULATED)
        until("all children are there", team.has_all)
        began = time.monotonic()
        with proxy.fault(Fault(late_by=1.6, leases_too=True)):  # a try of two has 3 s
            _edit(team, 7)
            until("the edit is applied", lambda: '"max_batch_size": 7' in team.settings_file())
            time.sleep(max(0.0, began + 15 - time.monotonic()))
            until("it leads still", lambda: slow.leads() is True)


@_NIGHTLY
def test_who_is_answered_later_than_a_lease_lasts_waits_and_keeps_nobody_from_leading(
    plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    with FaultyProxy(plane).running() as proxy:
        for name in ("first", "again", "healthy"):
            (tmp_path / name).mkdir()
        started = partial(operator, plane, lease=OTHER_LEASE)
        behind = partial(started, server=proxy.url)
        with behind(tmp_path / "first", may_end_with=(3,)) as first:
            until("it leads", lambda: first.leads() is True)
            with proxy.fault(Fault(late_by=8.0, leases_too=True)):
                assert first.ended(15) == 3
        with behind(tmp_path / "again") as again:
            with (
                proxy.fault(Fault(late_by=8.0, leases_too=True)),
                started(tmp_path / "healthy") as healthy,
            ):
                until("the other leads", lambda: healthy.leads() is True, 30)
                team.write(SIMULATED)
                until("all children are there", team.has_all)
                assert again.leads() is False
            until("it leads once it is answered in time", lambda: again.leads() is True, 30)


def _edit(team: Team, size: int) -> None:
    team.write({**SIMULATED, "batching": {"maxBatchSize": size}})
