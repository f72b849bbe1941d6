"""Two autoscalers at a real API server: one can go at any time, and one alone writes."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_autoscaler.telemetry import LEADER
from batchedmodel_kube.names import METRICS_GROUP, REQUIRED_REPLICAS_METRIC
from cluster import ControlPlane
from support.autoscaler_cluster import (
    HOME,
    SERVICE,
    Asker,
    Heard,
    PretendSidecar,
    autoscaler,
    available,
    endpoint,
    field,
    probed,
    watched_model,
)
from support.autoscaler_world import busy
from support.plane import apply, sidecar_address, until

TEAM = "two-autoscalers-team"
METRIC = (
    f"/apis/{METRICS_GROUP}/v1beta2/namespaces/{TEAM}/batchedmodels.batchedmodel.dev/minilm"
    f"/{REQUIRED_REPLICAS_METRIC}"
)
_ACCOUNT = f"system:serviceaccount:{HOME}:{SERVICE}"
_LOOKS_SECONDS = 20.0
"""In which every replica has looked for something to write."""
_LEAST_ANSWERS_A_SECOND = 5.0
_LONGEST_GAP_SECONDS = 2.0
"""Far from the fifty a second that are asked for on a machine that does nothing else."""


@pytest.fixture(scope="module")
def sidecar(control_plane: ControlPlane) -> Iterator[PretendSidecar]:
    told = replace(busy(0.4), rows_per_second=410.0, shortest_latency_seconds=0.0315)
    pretend = PretendSidecar(sidecar_address(control_plane, 4), told)
    yield pretend
    pretend.close()


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, sidecar: PretendSidecar) -> Iterator[ControlPlane]:
    """A control plane with all that the chart and the operator would have made."""
    with watched_model(control_plane, TEAM, sidecar):
        yield control_plane


def folder(path: Path, name: str) -> Path:
    found = path / name
    found.mkdir()
    return found


def asked_of(plane: ControlPlane, replica: int, *, sent: bool) -> None:
    """Kubernetes sends questions to a replica, or does not any more."""
    apply(plane, endpoint(plane.host_address, replica=replica, ready=sent))


def leader(plane: ControlPlane) -> int | None:
    leading = [number for number in (0, 1) if _leads(plane, number)]
    assert len(leading) < 2
    return leading[0] if leading else None


def written(plane: ControlPlane) -> list[dict[str, Any]]:
    """What autoscalers have written to models, by the audit log."""
    entries = map(json.loads, plane.audit_log.read_text().splitlines())
    return [
        one
        for one in entries
        if one["user"]["username"] == _ACCOUNT
        and one["verb"] == "patch"
        and one["objectRef"]["resource"] == "batchedmodels"
        and one["objectRef"]["namespace"] == TEAM
    ]


class Window:
    """Some seconds of what an asker hears, and whether it heard enough to tell anything."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._began = time.monotonic()

    def end(self, what: str) -> Heard:
        """What was heard in it; the next one begins."""
        heard, now = self._asker.since_last(), time.monotonic()
        seconds, self._began = now - self._began, now
        print(  # noqa: T201
            f"{what}: {len(heard.wrong)} of {heard.answers} failed in {seconds:.1f} s,"
            f" {heard.longest_gap:.2f} s between two: {heard.wrong[:1]}"
        )
        assert heard.answers >= _LEAST_ANSWERS_A_SECOND * seconds
        assert heard.longest_gap < _LONGEST_GAP_SECONDS
        return heard


def test_the_metric_is_served_while_one_of_two_is_replaced(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(autoscaler(plane, folder(tmp_path, "first")))
        second = stack.enter_context(autoscaler(plane, folder(tmp_path, "second"), replica=1))
        asked_of(plane, 1, sent=True)
        until("both APIServices are available", lambda: available(plane))
        asker = stack.enter_context(Asker(plane, METRIC, tmp_path))
        window = Window(asker)
        time.sleep(3)
        assert window.end("with both").wrong == []

        second.terminate()
        asked_of(plane, 1, sent=False)
        assert second.wait(15) == 0
        stack.enter_context(autoscaler(plane, folder(tmp_path, "third"), replica=1))
        asked_of(plane, 1, sent=True)
        time.sleep(3)
        assert window.end("ended in order and back").wrong == []

        first.kill()
        # Until a kubelet has noticed.
        time.sleep(1)
        asked_of(plane, 0, sent=False)
        time.sleep(1)
        window.end("killed")
        stack.enter_context(autoscaler(plane, folder(tmp_path, "fourth")))
        asked_of(plane, 0, sent=True)
        time.sleep(3)
        assert window.end("without it, and back").wrong == []


@pytest.mark.nightly
def test_what_both_have_learnt_is_written_by_one_of_them_and_once(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    def remembers(rows: float) -> bool:
        return bool(field(plane, TEAM, "bm/minilm", "status", "capacity", "rowsPerSecond") == rows)

    before = len(written(plane))
    assert sidecar.stats is not None
    sidecar.stats = replace(sidecar.stats, rows_per_second=510.0)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(autoscaler(plane, folder(tmp_path, str(number)), replica=number))
            for number in (0, 1)
        ]
        until("it is remembered", lambda: remembers(510), 60)
        time.sleep(_LOOKS_SECONDS)
        assert len(written(plane)) == before + 1
        leading = leader(plane)
        assert leading is not None
        processes[leading].kill()
        sidecar.stats = replace(sidecar.stats, rows_per_second=810.0)
        until("the other writes", lambda: remembers(810), 60)
        assert leader(plane) == 1 - leading
        assert len(written(plane)) == before + 2


@pytest.mark.nightly
def test_a_leader_that_was_frozen_leads_no_more_and_writes_nothing(
    plane: ControlPlane, sidecar: PretendSidecar, tmp_path: Path
) -> None:
    def remembers(rows: float) -> bool:
        return bool(field(plane, TEAM, "bm/minilm", "status", "capacity", "rowsPerSecond") == rows)

    assert sidecar.stats is not None
    with ExitStack() as stack:
        processes = [
            stack.enter_context(autoscaler(plane, folder(tmp_path, str(number)), replica=number))
            for number in (0, 1)
        ]
        until("one leads", lambda: leader(plane) is not None)
        frozen = leader(plane)
        assert frozen is not None
        asked_of(plane, 1 - frozen, sent=True)
        asked_of(plane, frozen, sent=False)
        processes[frozen].send_signal(signal.SIGSTOP)
        until("the other leads", lambda: _leads(plane, 1 - frozen), 20)
        before = len(written(plane))
        sidecar.stats = replace(sidecar.stats, rows_per_second=1_310.0)
        until("the other writes", lambda: remembers(1_310), 60)
        # News for both. Who has just written does not write again for a minute.
        sidecar.stats = replace(sidecar.stats, rows_per_second=2_610.0)
        processes[frozen].send_signal(signal.SIGCONT)
        time.sleep(_LOOKS_SECONDS)
        assert leader(plane) == 1 - frozen
        assert len(written(plane)) == before + 1


def _leads(plane: ControlPlane, replica: int) -> bool:
    return f"\n{LEADER} 1.0\n" in probed(plane, "/metrics", replica)
