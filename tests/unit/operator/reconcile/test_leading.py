"""Who leads works: an operator whose workers fail gives the Lease back and ends."""

import asyncio
import logging
import os
from datetime import UTC, datetime

import pytest
from kubernetes.aio.client.configuration import Configuration

from batchedmodel_kube.client import Client
from batchedmodel_kube.election import Election
from batchedmodel_kube.reading import Object
from batchedmodel_operator import __main__ as entry
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.reconcile.turns import Turns
from batchedmodel_operator.reconcile.work_queue import Workers, WorkQueue


class _BrokenWorkers(Workers[Key]):
    async def run(self) -> None:
        await asyncio.sleep(3)
        raise ValueError("a bug")


async def _nobody(key: Key) -> None:
    return None


async def _watch(cluster: object, add: object, namespaces: object, told: asyncio.Event) -> None:
    await told.wait()


async def _nothing_new(watching: object) -> bool:
    return True


async def _no_lease() -> Object | None:
    return None


async def _written(body: Object) -> None:
    return


@pytest.mark.looptime
async def test_workers_that_fail_end_the_watching_and_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry, "_watch", _watch)
    monkeypatch.setattr(entry, "_look_at_all", _nothing_new)
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    loop = asyncio.get_running_loop()
    election = Election(
        read=_no_lease,
        write=_written,
        namespace="system",
        name="operator",
        identity="a",
        clock=loop.time,
        calendar=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    await election.won()
    workers = _BrokenWorkers(
        WorkQueue(lambda: 0.5, group=lambda key: key, places=2),
        _nobody,
        at_most=1,
        clock=loop.time,
    )
    watching = entry.Watching(
        cluster=KubernetesCluster(Client(Configuration())),
        add=_add,
        class_changed=lambda name: None,
        turns=Turns(1),
        look_at=lambda key: None,
        namespaces=(),
    )
    told = asyncio.Event()
    with pytest.raises(ValueError, match="a bug"):
        async with asyncio.timeout(60):
            await entry._lead(watching, election, workers, told)
    assert loop.time() == 3
    # An orderly end is not taken for the loss of the Lease.
    await election.release()
    await asyncio.sleep(10)
    assert exits == []


def _add(key: Key, *, awaited: bool = False, version: str = "", autoscaler: str = "") -> None:
    """Nobody comes."""


def test_the_process_says_what_failed_and_ends_with_a_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(settings: object) -> None:
        raise ValueError("a bug")

    for name in ("NAMESPACE", "SIDECAR_IMAGE", "MODEL_SERVER_IMAGE"):
        monkeypatch.setenv(f"BATCHEDMODEL_{name}", "x")
    monkeypatch.setattr(entry, "_run", fails)
    assert entry.main() == entry.EXIT_FAILED
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "failed unexpectedly" in line.getMessage()
    assert "a bug" in caplog.text


class _Panic(BaseException):
    pass


class _BrokenElection(Election):
    async def lost(self) -> None:
        raise _Panic("of a library in another language")


async def test_an_operator_that_cannot_renew_its_lease_ends_whatever_was_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    election = _BrokenElection(
        read=_no_lease,
        write=_written,
        namespace="system",
        name="operator",
        identity="a",
        clock=lambda: 0.0,
        calendar=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    await entry._end_when_lost(election)
    assert exits == [entry.EXIT_LEASE_LOST]
