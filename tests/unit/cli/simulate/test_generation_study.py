"""What is asked of the simulator about a language model, and what is printed of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.simulate.changes import text_changes
from batchedmodel_contract.generation.description import GenerationDescription, StepSeconds
from batchedmodel_contract.manifest.batching import BatchSettings
from support.simulate_command import refusal

DOCS = Path(__file__).parents[4] / "docs"
ENGINE = ("--sequences=8", "--step-ms=20", "--prefill-us-per-token=50")
LENGTHS = ("--lengths=200", "--outputs=lognormal:20,0.5")
OWN = "handler: hf, source: {huggingFace: {repo: example/chat}}"
DESCRIPTION = GenerationDescription(
    vocabulary=100,
    max_context_tokens=2048,
    block_tokens=16,
    blocks=200,
    max_sequences=8,
    max_tokens_per_step=256,
    step_seconds=StepSeconds(base=0.02, prefill_token=1e-4, sequence=0.001, context_token=0.0),
)


def manifest(folder: Path, generation: str = "targetFirstTokenMilliseconds: 500") -> Path:
    file = folder / "qwen.yaml"
    file.write_text(
        "apiVersion: batchedmodel.dev/v1alpha1\n"
        "kind: BatchedModel\n"
        "metadata: {name: qwen}\n"
        "spec:\n"
        "  model: {protocol: OpenAI, image: engine:1, port: 8080}\n"
        f"  generation: {{{generation}}}\n",
        "utf-8",
    )
    return file


def simulated(
    capsys: pytest.CaptureFixture[str], *argv: object, requests: int = 300
) -> dict[str, Any]:
    options = (*ENGINE, f"--requests={requests}", "--json=-")
    code = main(["simulate", *options, *map(str, argv)])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    document: dict[str, Any] = json.loads(output.out)
    return document


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values()))
    return set().union(*map(_keys, value)) if isinstance(value, list) else set()


@pytest.mark.slow
def test_the_document_has_the_keys_that_are_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(capsys, manifest(tmp_path), "--rate=8", *LENGTHS)
    page = (DOCS / "simulate.md").read_text("utf-8")
    gone = sum(found["offered"]["gone_shares"].values())
    found["offered"]["gone_shares"], found["comparison"]["changes"] = dict[str, float](), []
    found["comparison"]["present"] = {}
    for key in _keys({**found, "settings": {}}):
        assert f"`{key}`" in page, key
    offered = found["offered"]
    assert offered["in_time_share"] + offered["late_share"] + gone == pytest.approx(1)
    assert offered["in_time_share"] > 0.9
    assert found["replicas_needed"] == 1
    assert found["highest_rate"] <= 1.1 * found["throughput_per_replica"]


@pytest.mark.slow
def test_equal_seeds_give_equal_documents_and_others_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (manifest(tmp_path), "--rate=5", *LENGTHS)
    first = simulated(capsys, *argv, "--seed=1")
    assert simulated(capsys, *argv, "--seed=1") == first
    assert simulated(capsys, *argv, "--seed=2") != first


@pytest.mark.slow
def test_three_times_of_what_one_replica_sustains_needs_about_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path)
    one = simulated(capsys, file, "--rate=8", *LENGTHS)
    more = simulated(capsys, file, f"--rate={3 * one['highest_rate']}", *LENGTHS)
    assert more["offered"]["in_time_share"] < 0.9
    assert 3 <= more["replicas_needed"] <= 5


@pytest.mark.slow
def test_a_limit_far_below_the_engine_is_worth_changing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = "targetFirstTokenMilliseconds: 500, maxConcurrentRequests: 1"
    found = simulated(capsys, manifest(tmp_path, narrow), "--rate=8", *LENGTHS)
    worth = found["comparison"]["worth_changing"]
    assert worth["field"] == "spec.generation.maxConcurrentRequests"
    assert worth["present"] == "1"
    assert found["comparison"]["highest_rate_with_it"] > 2 * found["highest_rate"]


@pytest.mark.slow
def test_a_recorded_trace_is_answered_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    lines = (f"{n / 5},{100 + n % 50},{10 + n % 20}" for n in range(200))
    trace.write_text("\n".join(["seconds,length,output", *lines]), "utf-8")
    code = main(["simulate", str(manifest(tmp_path, "")), f"--trace={trace}", "--speed=2", *ENGINE])
    output = capsys.readouterr().out
    assert code == 0
    assert "qwen: 1 replica, up to 8 sequences at 20 ms a step" in output
    assert "as recorded, 2 times as fast, 200 requests" in output
    assert "80.0% of the throughput" in output
    assert "in the middle 125 tokens in and 20 out" in output
    assert "note: 200 requests are few" in output


@pytest.mark.slow
def test_a_target_that_an_idle_engine_misses_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path, "targetTokenMilliseconds: 10")
    found = simulated(capsys, file, "--rate=2", *LENGTHS)
    assert (found["highest_rate"], found["replicas_needed"]) == (0.0, None)
    assert found["notes"][-1].startswith("no number of replicas meets the targets: on an idle")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--rate=1", *LENGTHS), "--step-ms is missing"),
        (("--rate=1", *LENGTHS, "--step-ms=20"), "--prefill-us-per-token is missing"),
        (("--rate=1", *ENGINE), "--lengths and --outputs say how long"),
        (("--rate=1", "--speed=2", *LENGTHS, *ENGINE), "--speed is for --trace"),
        (("--trace=x", "--lengths-from=y", *ENGINE), "--lengths-from is for --rate"),
        (("--trace=absent.csv", *ENGINE), "--trace absent.csv: "),
        (("--from=http://127.0.0.1:9090", *ENGINE), "--from: no lengths of answers are recorded"),
        (("--rate=1", *ENGINE, "--profile=p.json"), "--profile is for embeddings"),
    ],
)
def test_what_is_missing_or_does_not_go_together_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], complaint: str
) -> None:
    assert complaint in refusal(capsys, manifest(tmp_path), *argv)


def test_engines_options_are_for_language_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path)
    plain = file.read_text("utf-8").replace("OpenAI", "V2")
    file.write_text(plain.split("  gen")[0])
    assert "--step-ms is for language models" in refusal(capsys, file, "--rate=1", "--step-ms=20")


def own(folder: Path, generation: str = "targetFirstTokenMilliseconds: 500") -> Path:
    """A manifest of a handler's model."""
    file = manifest(folder, generation)
    plain = file.read_text("utf-8").replace("protocol: OpenAI, image: engine:1, port: 8080", OWN)
    file.write_text(plain, "utf-8")
    return file


@pytest.mark.slow
def test_our_own_engine_is_simulated_by_its_times_and_more_sequences_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = "targetFirstTokenMilliseconds: 2500, maxSequences: 2"
    argv = ("--rate=2", *LENGTHS, "--step-ms=100", "--context-us-per-token=0.1")
    found = simulated(capsys, own(tmp_path, narrow), *argv, requests=100)
    page = (DOCS / "simulate.md").read_text("utf-8")
    for key in found["engine"]:
        assert f"`{key}`" in page, key
    assert found["engine"]["sequences"] == 2
    assert found["engine"]["context_seconds_per_token"] == pytest.approx(1e-7)
    assert found["offered"]["mean_sequences"] <= 2.05
    worth = found["comparison"]["worth_changing"]
    assert (worth["field"], worth["present"]) == ("spec.generation.maxSequences", "2")
    assert found["comparison"]["highest_rate_with_it"] > 2 * found["highest_rate"]
    assert found["advice"].startswith("worth changing: maxSequences from 2 to absent")


@pytest.mark.slow
def test_what_an_engine_says_of_itself_is_its_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "engine.json"
    profile.write_text(json.dumps(DESCRIPTION.to_mapping()), "utf-8")
    argv = [own(tmp_path, ""), "--rate=5", *LENGTHS, f"--profile={profile}", "--requests=100"]
    code = main(["simulate", *map(str, argv), "--json=-"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["engine"] == {
        "sequences": 8,
        "step_seconds": 0.02,
        "sequence_seconds": 0.001,
        "prefill_seconds_per_token": 1e-4,
        "context_seconds_per_token": 0.0,
        "chunk_tokens": 256,
        "cache_tokens": 3200,
    }
    assert found["offered"]["requests"] >= 90
    assert found["offered"]["gone_shares"] == {}
    assert (
        main(["simulate", *map(str, argv), "--cache-tokens=160", "--step-ms=10", "--json=-"]) == 0
    )
    small = json.loads(capsys.readouterr().out)
    assert (small["engine"]["cache_tokens"], small["engine"]["step_seconds"]) == (160, 0.01)
    assert small["offered"]["gone_shares"] == {"too_large": 1.0}, "a prompt of 200 does not fit"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ((), "--profile and --step-ms are missing"),
        (("--step-ms=20",), "--profile and --prefill-us-per-token are missing"),
        (("--profile={folder}/absent.json",), "cannot be read"),
        (("--profile={folder}/curve.json",), "is not a description of it"),
        (("--profile={folder}/none.json",), "is not a JSON object with blocks, stepSeconds"),
    ],
)
def test_our_own_engine_needs_its_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "curve.json").write_text('{"points": []}', "utf-8")
    (tmp_path / "none.json").write_text("[]", "utf-8")
    given = [one.format(folder=tmp_path) for one in argv]
    assert complaint in refusal(capsys, own(tmp_path), "--rate=1", *LENGTHS, *given)


def test_only_our_own_engine_is_told_what_its_context_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--rate=1", *LENGTHS, *ENGINE, "--context-us-per-token=1")
    complaint = refusal(capsys, manifest(tmp_path), *argv)
    assert "--context-us-per-token is for models of a handler" in complaint


@pytest.mark.parametrize(
    ("present", "sequences", "ours", "tried"),
    [
        (None, 64, False, ["8", "16", "24", "32", "64", "80"]),
        (64, 64, False, ["absent", "8", "16", "24", "32", "80"]),
        (None, 1, False, ["1"]),
        (None, 64, True, ["8", "16", "32", "128", "256"]),
        (16, 16, True, ["absent", "2", "4", "8", "32", "64"]),
    ],
)
def test_numbers_of_texts_are_tried_around_what_the_engine_runs_and_never_the_present_one(
    present: int | None, sequences: int, ours: bool, tried: list[str]
) -> None:
    settings = BatchSettings(max_sequences=present, max_concurrent_requests=present)
    changes = list(text_changes(settings, sequences, ours=ours))
    assert [change.value for change in changes] == tried
    field = "maxSequences" if ours else "maxConcurrentRequests"
    assert {(change.section, change.field) for change in changes} == {("spec.generation", field)}


@pytest.mark.slow
def test_texts_without_a_target_are_compared_by_throughput_where_too_many_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulated(capsys, manifest(tmp_path, ""), "--rate=100", *LENGTHS, requests=100)
    assert found["comparison"]["measure"] == "throughput"
    gains = [change["gain"] for change in found["comparison"]["changes"]]
    assert gains == sorted(gains, reverse=True)


def test_a_trace_without_answers_needs_their_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds,length\n0,10\n1,20\n", "utf-8")
    complaint = refusal(capsys, manifest(tmp_path), f"--trace={trace}", *ENGINE)
    assert "names no column GeneratedTokens" in complaint
