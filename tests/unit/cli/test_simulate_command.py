"""`batchedmodel simulate` as a person types it: what is printed, and what it depends on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_cli.__main__ import main
from support.simulate_command import refusal, simulated, written

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.slow
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


@pytest.mark.slow
def test_equal_seeds_give_equal_documents_and_others_others(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (manifest, f"--profile={profile}", "--rate=700", "--replicas=2")
    first = simulated(capsys, *argv, "--seed=1")
    assert simulated(capsys, *argv, "--seed=1") == first
    assert simulated(capsys, *argv, "--seed=2") != first


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_twice_the_rate_needs_about_twice_the_replicas(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = simulated(capsys, manifest, f"--profile={profile}", "--rate=4000", "--lengths=64")
    two = simulated(capsys, manifest, f"--profile={profile}", "--rate=8000", "--lengths=64")
    assert 1.5 <= two["replicas_needed"] / one["replicas_needed"] <= 2.5


@pytest.mark.slow
@pytest.mark.nightly
def test_burstier_traffic_is_sustained_at_a_lower_rate(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (manifest, f"--profile={profile}", "--rate=500", "--lengths=lognormal:60,0.8")
    even = simulated(capsys, *argv)
    bursty = simulated(capsys, *argv, "--burstiness=4")
    assert bursty["highest_rate"] < 0.9 * even["highest_rate"]
    assert bursty["traffic"]["arrivals"] == "gamma, burstiness 4"


@pytest.mark.slow
def test_no_more_is_in_time_a_second_than_the_replica_can_answer(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(capsys, manifest, f"--profile={profile}", "--rate=100000", "--lengths=64")
    assert found["offered"]["in_time_share"] < 0.2
    assert found["offered"]["goodput"] <= found["throughput_per_replica"]


@pytest.mark.slow
def test_goodput_is_about_the_rate_where_all_is_in_time_also_without_a_target(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patient = written(tmp_path)
    found = simulated(capsys, patient, f"--profile={profile}", "--rate=300", "--lengths=64")
    assert found["offered"]["goodput"] == pytest.approx(300, rel=0.1)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_fleet_with_its_share_of_the_traffic_fares_as_one_replica(
    manifest: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = simulated(capsys, manifest, f"--profile={profile}", "--rate=300")
    four = simulated(capsys, manifest, f"--profile={profile}", "--rate=1200", "--replicas=4")
    assert four["offered"]["requests"] == pytest.approx(1000, rel=0.15)
    assert four["offered"]["latency"]["p50"] == pytest.approx(one["offered"]["latency"]["p50"], 0.1)
    assert four["highest_rate"] == pytest.approx(4 * one["highest_rate"], rel=0.15)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_bound_on_tokens_that_keeps_rows_apart_is_worth_leaving_out(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = written(tmp_path, "maxBatchTokens: 64, targetLatencyMilliseconds: 50")
    found = simulated(capsys, tight, f"--profile={profile}", "--rate=400", "--lengths=60")
    advised = found["comparison"]["worth_changing"]
    assert (advised["field"], advised["present"]) == ("spec.batching.maxBatchTokens", "64")
    assert advised["value"] == "absent"
    assert found["comparison"]["highest_rate_with_it"] > 1.5 * found["highest_rate"]


def test_without_a_profile_it_says_how_to_get_one(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, manifest, "--rate=100")
    assert said.startswith("--profile is missing: ")
    assert f"batchedmodel simulate {manifest} --profile http://127.0.0.1:9090" in said
    assert "kubectl port-forward deploy/minilm 9090" in said
    assert f"batchedmodel simulate {manifest} --profile http://127.0.0.1:9090" in said


@pytest.mark.slow
def test_a_server_of_ones_own_is_told_to_be_measured_by_hand(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream = written(tmp_path, model="protocol: V2, image: mine")
    assert '{"cost_rule": "Padded"' in refusal(capsys, upstream, "--rate=100")
    found = simulated(capsys, upstream, f"--profile={profile}", "--rate=100")
    assert any("tells its sidecar no profile" in note for note in found["notes"])


@pytest.mark.slow
@pytest.mark.nightly
def test_a_server_of_ones_own_is_judged_when_its_device_is_known(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batching = "targetLatencyMilliseconds: 50, lateness: Refuse"
    upstream = written(tmp_path, batching, model="protocol: V2, image: mine")
    argv = (f"--profile={profile}", "--rate=3000", "--lengths=64")
    learnt = simulated(capsys, upstream, *argv)
    assert simulated(capsys, upstream, *argv) == learnt
    told = simulated(capsys, written(tmp_path, batching), *argv)
    assert learnt["offered"]["in_time_share"] > 0.85 * told["offered"]["in_time_share"]
    sustained = learnt["comparison"]["highest_rate_with_it"]
    assert sustained is None or sustained >= learnt["highest_rate"]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_server_with_three_workers_sustains_what_three_servers_do(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(workers: int, *argv: str) -> dict[str, Any]:
        batching = f"targetLatencyMilliseconds: 80, maxConcurrentBatches: {workers}"
        upstream = written(tmp_path, batching, model="protocol: V2, image: mine")
        arguments = (f"--profile={profile}", "--rate=900", "--lengths=64", *argv)
        return simulated(capsys, upstream, *arguments)

    one, three = asked(1), asked(3)
    assert three["throughput_per_replica"] == pytest.approx(
        3 * one["throughput_per_replica"], rel=0.1
    )
    # Better than three that are sent requests at random.
    assert three["highest_rate"] > 0.97 * asked(1, "--replicas=3")["highest_rate"]
    assert three["offered"]["busy_share"] < one["offered"]["busy_share"]
    assert not any(
        change["field"] == "spec.batching.maxConcurrentBatches"
        for change in three["comparison"]["changes"]
    )


@pytest.mark.slow
def test_a_target_that_no_device_meets_is_said_so(
    tmp_path: Path, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hopeless = written(tmp_path, "targetLatencyMilliseconds: 5")
    found = simulated(capsys, hopeless, f"--profile={profile}", "--rate=10", "--lengths=512")
    assert (found["highest_rate"], found["replicas_needed"]) == (0, None)
    assert any("no number of replicas meets the target" in note for note in found["notes"])


def test_a_wrong_manifest_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "maxBatchSize: 0")
    said = refusal(capsys, file, "--rate=100")
    assert said == f"{file}: spec.batching.maxBatchSize: 0 is below the minimum 1\n"


@pytest.mark.slow
def test_nothing_of_the_simulator_is_loaded_before_it_is_needed(tmp_path: Path) -> None:
    example = str(EXAMPLES / "simulated.yaml")
    lines = [["diff", example, f"--live={example}"], ["run", str(tmp_path / "none.yaml")]]
    told = (
        "import sys\n"
        "from batchedmodel_cli.__main__ import main\n"
        f"codes = [main(line) for line in {lines!r}]\n"
        "late = ('numpy', 'batchedmodel_cli.simulator')\n"
        "print(codes, [name for name in sys.modules if name.startswith(late)])"
    )
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[0, 2] []"
