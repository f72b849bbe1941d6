"""Who leads works: an operator whose workers fail gives the Lease back and ends."""

import asyncio
import logging
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchedmodel_kube.election import Election
from batchedmodel_kube.reading import Object
from batchedmodel_operator import __main__ as entry
from batchedmodel_operator.cluster.store import WATCHED
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.reconcile.work_queue import Workers
from batchedmodel_operator.settings import OperatorSettings
from support.pretend_api_server import becomes, pretend_api_server


async def _no_lease() -> Object | None:
    return None


async def _written(body: Object) -> None:
    return


_SETTINGS = OperatorSettings(
    sidecar_image="sidecar", model_server_image="server", namespace="ns", probe_port=0
)


async def test_workers_that_fail_end_the_watching_and_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Workers[Key]) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(Workers, "run", broken)
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with pretend_api_server(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        with pytest.raises(ValueError, match="a bug"):
            async with asyncio.timeout(60):
                await entry._run(_SETTINGS)
        # An orderly end is not taken for the loss of the Lease, which it gives back.
        assert server.lease is not None
        assert not server.lease["spec"]["holderIdentity"]
    assert exits == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_operator_that_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with pretend_api_server(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        running = asyncio.create_task(entry._run(_SETTINGS))
        await becomes(lambda: len(server.watches) >= len(WATCHED), seconds=30)
        os.kill(os.getpid(), number)
        async with asyncio.timeout(4):
            await running
        assert server.lease is not None
        assert not server.lease["spec"]["holderIdentity"]


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
