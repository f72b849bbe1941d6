"""`batchedmodel simulate` as a person types it: files, sockets on loopback, what is printed."""

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.simulate.sources import Unusable, profile_from
from batchedmodel_contract.description import CostRule
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_contract.profile import Profile, ProfilePoint
from batchedmodel_contract.server_api import profile_path
from batchedmodel_scheduling.policy import Priority
from batchedmodel_sidecar.recorder import FlightRecorder

EXAMPLES = Path(__file__).parents[3] / "examples"
PROFILE = Profile(
    cost_rule=CostRule.PADDED,
    device="test",
    points=tuple(
        ProfilePoint(rows=rows, length=length, seconds=0.004 + 6e-6 * rows * length)
        for rows in (1, 8, 32)
        for length in (16, 128, 512)
    ),
)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return written(tmp_path, "targetLatencyMilliseconds: 50")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE.to_mapping()), "utf-8")
    return file


def written(folder: Path, batching: str = "", model: str = "handler: simulated") -> Path:
    file = folder / "model.yaml"
    file.write_text(
        "apiVersion: batchedmodel.dev/v1alpha1\n"
        "kind: BatchedModel\n"
        "metadata: {name: minilm}\n"
        f"spec: {{model: {{{model}}}, batching: {{{batching}}}}}\n",
        "utf-8",
    )
    return file


def simulated(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    """The JSON document of a short simulation."""
    code = main(["simulate", *map(str, argv), "--requests=1000", "--json=-"])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    document: dict[str, Any] = json.loads(output.out)
    return document


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """What a command line is refused with."""
    code: int | str | None
    try:
        code = main(["simulate", *map(str, argv)])
    except SystemExit as ended:  # by argparse
        code = ended.code
    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    return output.err


class _Pages(BaseHTTPRequestHandler):
    pages: Mapping[str, bytes]

    def do_GET(self) -> None:
        body = self.pages.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """A test's output is its own."""


class _OnUnixSocket(socketserver.UnixStreamServer):
    server_name, server_port = "model", 0


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
    recorder = FlightRecorder(started=1000.0)
    for number in range(300):
        now = 1001.0 + 0.01 * number
        if number % 10 == 0:
            recorder.refused([64], Priority.NORMAL, Rejection.QUEUE_FULL, now)
        first = recorder.accepted([32, 200], Priority.HIGH, now)
        if number < 299:
            recorder.settled(first, 2, Outcome.COMPLETED)
    return b"".join(recorder.csv())


def test_the_example_is_answered_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    example, measured = EXAMPLES / "simulated.yaml", EXAMPLES / "simulated-profile.json"
    argv = ["simulate", str(example), f"--profile={measured}", "--rate=1500", "--requests=2000"]
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "simulated on simulated: 1 replica, policy Deadline, up to 32 rows a batch"
    named = [line.strip() for line in lines]
    for beginning in (
        "offered  ",
        "answered in 30 s  ",
        "latency  ",
        "device busy  ",
        "mean batch  ",
        "1 replica sustains  ",
        "replicas needed  ",
        "as it is  ",
        "policy: Greedy  ",
    ):
        assert any(line.startswith(beginning) for line in named), beginning
    assert any("worth changing" in line for line in named)


def test_equal_seeds_give_equal_documents_and_others_others(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (manifest, f"--profile={profile}", "--rate=700", "--replicas=2")
    first = simulated(capsys, *argv, "--seed=1")
    assert simulated(capsys, *argv, "--seed=1") == first
    assert simulated(capsys, *argv, "--seed=2") != first


def test_the_document_has_the_keys_that_are_promised(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(capsys, manifest, f"--profile={profile}", "--rate=500")
    page = (EXAMPLES.parent / "docs" / "simulate.md").read_text("utf-8")
    for key in _keys({**found, "settings": {}}):
        assert f"`{key}`" in page, key
    offered = found["offered"]
    names = ("in_time", "late", "refused", "shed", "expired")
    assert sum(offered[f"{name}_share"] for name in names) == pytest.approx(1)
    assert offered["goodput"] == pytest.approx(500 * offered["in_time_share"], rel=0.1)
    assert found["settings"]["target_seconds"] == 0.05


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values()))
    return set().union(*map(_keys, value)) if isinstance(value, list) else set()


def test_the_document_is_written_beside_the_table(
    manifest: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.json"
    argv = ["simulate", str(manifest), f"--profile={profile}", "--rate=50", "--requests=200"]
    assert main([*argv, f"--json={file}"]) == 0
    assert "replicas needed" in capsys.readouterr().out
    assert json.loads(file.read_text("utf-8"))["version"] == 1
    assert main([*argv, f"--json={tmp_path}"]) == 1
    assert f"--json {tmp_path}: cannot be written: Is a directory" in capsys.readouterr().err


def test_twice_the_rate_needs_about_twice_the_replicas(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = simulated(capsys, manifest, f"--profile={profile}", "--rate=4000", "--lengths=64")
    two = simulated(capsys, manifest, f"--profile={profile}", "--rate=8000", "--lengths=64")
    assert 1.5 <= two["replicas_needed"] / one["replicas_needed"] <= 2.5


def test_burstier_traffic_is_sustained_at_a_lower_rate(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (manifest, f"--profile={profile}", "--rate=500", "--lengths=lognormal:60,0.8")
    even = simulated(capsys, *argv)
    bursty = simulated(capsys, *argv, "--burstiness=4")
    assert bursty["highest_rate"] < 0.9 * even["highest_rate"]
    assert bursty["traffic"]["arrivals"] == "gamma, burstiness 4"


def test_no_more_is_in_time_a_second_than_the_replica_can_answer(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(capsys, manifest, f"--profile={profile}", "--rate=100000", "--lengths=64")
    assert found["offered"]["in_time_share"] < 0.2
    assert found["offered"]["goodput"] <= found["throughput_per_replica"]


def test_goodput_is_about_the_rate_where_all_is_in_time_also_without_a_target(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patient = written(tmp_path)
    found = simulated(capsys, patient, f"--profile={profile}", "--rate=300", "--lengths=64")
    assert found["offered"]["goodput"] == pytest.approx(300, rel=0.1)


def test_a_fleet_with_its_share_of_the_traffic_fares_as_one_replica(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = simulated(capsys, manifest, f"--profile={profile}", "--rate=300")
    four = simulated(capsys, manifest, f"--profile={profile}", "--rate=1200", "--replicas=4")
    assert four["offered"]["requests"] == pytest.approx(1000, rel=0.15)
    assert four["offered"]["latency"]["p50"] == pytest.approx(one["offered"]["latency"]["p50"], 0.1)
    assert four["highest_rate"] == pytest.approx(4 * one["highest_rate"], rel=0.15)


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


def test_a_bound_on_tokens_that_keeps_rows_apart_is_worth_leaving_out(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = written(tmp_path, "maxBatchTokens: 64, targetLatencyMilliseconds: 50")
    found = simulated(capsys, tight, f"--profile={profile}", "--rate=400", "--lengths=60")
    advised = found["comparison"]["worth_changing"]
    assert (advised["field"], advised["present"]) == ("spec.batching.maxBatchTokens", "64")
    assert advised["value"] == "absent"
    assert found["comparison"]["highest_rate_with_it"] > 1.5 * found["highest_rate"]


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


def test_a_profile_is_fetched_from_a_model_server(tmp_path: Path) -> None:
    pages = {profile_path("minilm"): json.dumps(PROFILE.to_mapping()).encode()}
    with serving(pages) as address:
        assert profile_from(address, "minilm") == PROFILE
        assert profile_from(f"{address}{profile_path('minilm')}", "other") == PROFILE
        with pytest.raises(Unusable, match="answers 404 Not Found"):
            profile_from(address, "other")
    path = tmp_path / "model.sock"
    with running(_OnUnixSocket(str(path), type("Pages", (_Pages,), {"pages": pages}))):
        assert profile_from(str(path), "minilm") == PROFILE
        with pytest.raises(Unusable, match="answers 404 Not Found"):
            profile_from(str(path), "other")
    with pytest.raises(Unusable, match="cannot be asked: ConnectionRefusedError"):
        profile_from(str(path), "minilm")


def test_without_a_profile_it_says_how_to_get_one(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, manifest, "--rate=100")
    assert said.startswith("--profile is missing: ")
    assert f"batchedmodel simulate {manifest} --profile /" in said
    assert "kubectl port-forward deploy/minilm 9090" in said
    assert f"batchedmodel simulate {manifest} --profile http://127.0.0.1:9090" in said


def test_a_server_of_ones_own_is_told_to_be_measured_by_hand(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = written(tmp_path, model="protocol: V2, image: mine")
    assert '{"cost_rule": "Padded"' in refusal(capsys, foreign, "--rate=100")
    found = simulated(capsys, foreign, f"--profile={profile}", "--rate=100")
    assert any("tells its sidecar no profile" in note for note in found["notes"])


def test_a_server_of_ones_own_is_judged_when_its_device_is_known(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batching = "targetLatencyMilliseconds: 50, lateness: Refuse"
    foreign = written(tmp_path, batching, model="protocol: V2, image: mine")
    argv = (f"--profile={profile}", "--rate=3000", "--lengths=64")
    learnt = simulated(capsys, foreign, *argv)
    assert simulated(capsys, foreign, *argv) == learnt
    told = simulated(capsys, written(tmp_path, batching), *argv)
    assert learnt["offered"]["in_time_share"] > 0.85 * told["offered"]["in_time_share"]
    sustained = learnt["comparison"]["highest_rate_with_it"]
    assert sustained is None or sustained >= learnt["highest_rate"]


def test_a_target_that_no_device_meets_is_said_so(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hopeless = written(tmp_path, "targetLatencyMilliseconds: 5")
    found = simulated(capsys, hopeless, f"--profile={profile}", "--rate=10", "--lengths=512")
    assert (found["highest_rate"], found["replicas_needed"]) == (0, None)
    assert any("no number of replicas meets the target" in note for note in found["notes"])


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


def test_a_wrong_manifest_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "maxBatchSize: 0")
    said = refusal(capsys, file, "--rate=100")
    assert said == f"{file}: spec.batching.maxBatchSize: 0 is below the minimum 1\n"


def test_nothing_of_the_simulator_is_loaded_before_it_is_needed() -> None:
    told = (
        "import sys, batchedmodel_cli.__main__; "
        "print([n for n in sys.modules if n.startswith(('numpy', 'batchedmodel_scheduling'))])"
    )
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
