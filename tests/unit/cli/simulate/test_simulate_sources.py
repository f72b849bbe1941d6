"""What `batchedmodel simulate` is given: files, ports on loopback, and what is wrong there."""

import json
import os
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from batchedmodel_cli.simulate import sources
from batchedmodel_cli.simulate.sources import Unusable, profile_from
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.processes.sidecar_api import profile_path
from batchedmodel_scheduling.queue.items import Priority
from batchedmodel_sidecar.telemetry.ledger import RecentArrivals
from support.simulate_command import PROFILE, refusal, simulated, written


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


class _Pages(BaseHTTPRequestHandler):
    pages: Mapping[str, bytes]

    def do_GET(self) -> None:
        body = self.pages.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """A test's output is its own."""


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(pages: Mapping[str, bytes]) -> Iterator[str]:
    """The address of an HTTP server on loopback that has these pages."""
    server = HTTPServer(("127.0.0.1", 0), type("Pages", (_Pages,), {"pages": pages}))
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"


def recorded() -> bytes:
    """What a sidecar's flight recorder holds after some traffic, as it writes it."""
    recorder = RecentArrivals(started=1000.0)
    for number in range(300):
        now = 1001.0 + 0.01 * number
        if number % 10 == 0:
            recorder.refused([64], Priority.NORMAL, Rejection.QUEUE_FULL, now)
        first = recorder.accepted([32, 200], Priority.HIGH, now)
        if number < 299:
            recorder.settled(first, 2, Outcome.COMPLETED)
    return b"".join(recorder.csv())


@pytest.mark.slow
def test_a_trace_is_replayed_with_its_lengths(
    manifest: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{n / 100},{40 + n % 3}\n" for n in range(2001))
    trace.write_text(f"seconds,length\n{rows}", "utf-8")
    found = simulated(capsys, manifest, f"--profile={profile}", f"--trace={trace}")
    assert found["traffic"]["rate"] == pytest.approx(100, rel=0.001)
    assert found["traffic"]["typical_length"] == 41
    assert found["traffic"]["arrivals"] == "the latest of 2,001 recorded"
    assert found["offered"]["requests"] == 1000


@pytest.mark.slow
def test_a_sidecars_flight_recorder_is_replayed(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({"/arrivals": recorded()}) as address:
        found = simulated(capsys, manifest, f"--profile={profile}", f"--from={address}")
    assert found["offered"]["requests"] == 630
    assert found["traffic"]["rate"] == pytest.approx(210, rel=0.01)
    assert found["replicas"] == 1
    assert any("630 requests are few" in note for note in found["notes"])
    assert any("what its own pod received" in note for note in found["notes"])


def test_a_partial_profile_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A plan for pods was made by two points without a word."""
    file = tmp_path / "partial.json"
    few = replace(PROFILE, points=PROFILE.points[:2], partial=True)
    file.write_text(json.dumps(few.to_mapping()), "utf-8")
    found = simulated(capsys, written(tmp_path), f"--profile={file}", "--rate=50")
    assert any("the profile is partial, with 2 points" in note for note in found["notes"])
    file.write_text(json.dumps(PROFILE.to_mapping()), "utf-8")
    found = simulated(capsys, written(tmp_path), f"--profile={file}", "--rate=50")
    assert not any("partial" in note for note in found["notes"])


def test_a_profile_is_fetched_from_an_admin_port() -> None:
    pages = {profile_path("minilm"): json.dumps(PROFILE.to_mapping()).encode()}
    with serving(pages) as address:
        assert profile_from(address, "minilm") == PROFILE
        assert profile_from(f"{address}{profile_path('minilm')}", "other") == PROFILE
        with pytest.raises(Unusable, match="answers 404 Not Found"):
            profile_from(address, "other")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("x", "is not JSON"),
        ("[]", "is not a JSON object with cost_rule, device and points"),
        ("{}", "profile: cannot be read: KeyError('cost_rule')"),
        (
            '{"cost_rule": "Rows", "device": "x", "points": [{"rows": 0}]}',
            "profile.points[0].rows: 0 is below the minimum 1",
        ),
        (
            '{"cost_rule": "Rows", "device": "x", "points": []}',
            "profile.points: must hold at least one measured batch",
        ),
        (
            '{"cost_rule": "Rows", "device": "x", "points": '
            '[{"rows": 1, "length": 1, "seconds": 0}]}',
            "profile.points: every batch must take more than 0 and at most 3600 s",
        ),
    ],
)
def test_a_wrong_profile_is_named_with_its_rule(
    text: str, rule: str, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text, "utf-8")
    said = refusal(capsys, manifest, "--rate=100", f"--profile={file}")
    assert said.startswith(f"--profile {file}: {rule}")


def test_a_wrong_trace_is_named_with_its_line(
    manifest: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,length\n1,16\n2,no\n", "utf-8")
    said = refusal(capsys, manifest, f"--profile={profile}", f"--trace={trace}")
    assert said.startswith(f'--trace {trace}: trace: line 3, column length: "no" must be a whole')
    trace.write_text("seconds,length\n1,16\n", "utf-8")
    said = refusal(capsys, manifest, f"--profile={profile}", f"--trace={trace}")
    assert "must have arrivals at two different times at least" in said


def test_what_cannot_be_fetched_is_named_with_its_reason(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({}) as address:
        said = refusal(capsys, manifest, f"--profile={profile}", f"--from={address}")
        assert said == f"--from {address}: answers 404 Not Found ({address}/arrivals)\n"
    said = refusal(capsys, manifest, f"--profile={profile}", f"--from={address}")
    assert said.startswith(f"--from {address}: cannot be reached: ")
    said = refusal(capsys, manifest, f"--profile={profile}", "--from=pod:9090")
    assert said == "--from pod:9090: is not a URL such as http://127.0.0.1:9090\n"
    said = refusal(capsys, manifest, "--rate=100", "--profile=no.json")
    assert said == "--profile no.json: cannot be read: No such file or directory\n"


def test_what_is_too_large_is_not_read_to_its_end(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({"/large": b" " * (5 * 1024 * 1024)}) as address:
        said = refusal(capsys, manifest, "--rate=100", f"--profile={address}/large")
    assert "is larger than 4 MiB" in said


@pytest.mark.parametrize("said_at_once", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte_has_one_deadline(
    said_at_once: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_LONGEST_SECONDS", 0.5)
    ended = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(said_at_once)
            while not ended.wait(0.02):
                self.request.sendall(b"H")

    server = socketserver.TCPServer(("127.0.0.1", 0), Dripping)
    with running(server):
        _, port = server.socket.getsockname()
        began = time.monotonic()
        with pytest.raises(Unusable, match="is not complete after 0.5 s"):
            profile_from(f"http://127.0.0.1:{port}", "minilm")
        ended.set()
    assert time.monotonic() - began < 5


def test_a_pipe_into_which_nobody_writes_has_the_same_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_LONGEST_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(Unusable, match="is not complete after 0.1 s"):
        profile_from(str(pipe), "minilm")
    # Whoever still waits for a writer gets one.
    pipe.open("wb").close()
