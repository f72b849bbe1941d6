from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest

from batchedmodel_cli.manifest_file import (
    UnusableManifest,
    in_front_of_a_server,
    on_this_machine,
    read_manifest_file,
    without_effect,
)
from batchedmodel_kube.manifest.manifest import BatchedModel, read_manifest

HEAD = "apiVersion: batchedmodel.dev/v1alpha1\nkind: BatchedModel\nmetadata: {name: minilm}\n"


def written(tmp_path: Path, spec: str) -> Path:
    file = tmp_path / "model.yaml"
    file.write_text(HEAD + "spec:\n" + indent(dedent(spec), "  "), "utf-8")
    return file


def messages(file: Path) -> tuple[str, ...]:
    with pytest.raises(UnusableManifest) as caught:
        read_manifest_file(file)
    return caught.value.messages


def with_model(**model: object) -> BatchedModel:
    return read_manifest(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": "minilm"},
            "spec": {"model": model},
        }
    )


def complaint(manifest: BatchedModel, folder: Path) -> str:
    with pytest.raises(UnusableManifest) as caught:
        on_this_machine(manifest, folder)
    (message,) = caught.value.messages
    return message


def test_a_right_file_gives_its_manifest(tmp_path: Path) -> None:
    file = written(tmp_path, "model: {handler: simulated}\nbatching: {maxBatchSize: 8}\n")
    manifest = read_manifest_file(file)
    assert (manifest.name, manifest.spec.batching.max_batch_size) == ("minilm", 8)


def test_every_mistake_gets_its_own_message(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """\
        model: {handler: simulated}
        batching: {maxBatchSize: 0, policy: Eager}
        """,
    )
    first, second = sorted(messages(file))
    assert first == "spec.batching.maxBatchSize: 0 is below the minimum 1"
    assert second.startswith('spec.batching.policy: "Eager" is not one of')


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    assert messages(tmp_path / "no.yaml") == ("no such file",)


def test_a_folder_is_no_manifest(tmp_path: Path) -> None:
    assert messages(tmp_path) == (
        "is a folder; name the manifest in it, or a checkpoint by run --model",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"spec: [1, 2\n", "is not YAML: line 2, column 1: ", id="unclosed"),
        pytest.param(b"a: b: c\n", "is not YAML: line 1, column 5: ", id="nested colon"),
        pytest.param(b"a: !!python/none x\n", "is not YAML: line 1, column 4: ", id="foreign tag"),
        pytest.param(b"a: 1\x00\n", "is not YAML: ", id="control character"),
        pytest.param(b"a: !!timestamp 2024-13-40\n", "is not YAML: ", id="impossible date"),
        pytest.param(b"\xff\xfe\xff", "is not UTF-8 text: ", id="not text"),
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"# only a comment\n", "is empty", id="comment only"),
        pytest.param(
            b"a: 1\n---\nb: 2\n", "holds 2 manifests; one BatchedModel per file", id="two"
        ),
        pytest.param(b"- 1\n", "manifest: [1] is not a mapping", id="a list"),
        pytest.param(
            b"kind: A\nkind: B\n",
            'is not YAML: line 2, column 1: "kind" is given twice',
            id="twice",
        ),
        pytest.param(b"[" * 5000, "line 1, column 101: is nested more", id="nested without end"),
    ],
)
def test_an_unreadable_file_gets_one_message(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_bytes(content)
    (message,) = messages(file)[:1]
    assert message.startswith(expected)
    assert "\n" not in message


def test_one_document_between_marks_is_one_manifest(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(f"---\n{HEAD}spec: {{model: {{handler: simulated}}}}\n---\n", "utf-8")
    assert read_manifest_file(file).name == "minilm"


def test_a_container_of_ones_own_is_not_started_here(tmp_path: Path) -> None:
    message = complaint(with_model(protocol="V2", image="mine:1"), tmp_path)
    assert message.startswith('spec.model.protocol: "V2" is a container of one\'s own, ')
    assert "--upstream http://127.0.0.1:PORT" in message


def test_in_front_of_a_server_stands_a_manifest_with_a_protocol_and_no_other() -> None:
    manifest = with_model(protocol="V1", image="mine:1")
    assert in_front_of_a_server(manifest) == manifest
    with pytest.raises(UnusableManifest) as refused:
        in_front_of_a_server(with_model(handler="simulated"))
    (message,) = refused.value.messages
    assert message.startswith('spec.model.handler: "simulated" is run by our own model server; ')
    assert "spec.model.protocol says what it speaks" in message


def test_a_relative_source_lies_beside_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    manifest = on_this_machine(with_model(handler="hf", source={"path": "weights"}), tmp_path)
    source = manifest.spec.model.source
    assert source is not None
    assert source.path == str(tmp_path / "weights")


def test_an_absolute_source_stays(tmp_path: Path) -> None:
    given = with_model(handler="hf", source={"path": str(tmp_path)})
    source = on_this_machine(given, Path("/elsewhere")).spec.model.source
    assert source is not None
    assert source.path == str(tmp_path)


def test_a_source_that_is_not_there_is_named_with_the_place(tmp_path: Path) -> None:
    message = complaint(with_model(handler="hf", source={"path": "weights"}), tmp_path)
    place = tmp_path / "weights"
    rule = f"is neither a folder nor a .gguf file (sought at {place})"
    assert message == f'spec.model.source.path: "weights" {rule}'


@pytest.mark.parametrize("package", ["no_such_model_of_ours", "no_such_model_of_ours.inner"])
def test_a_package_that_is_not_installed_comes_with_the_pip_line(
    tmp_path: Path, package: str
) -> None:
    message = complaint(with_model(handler="hf", source={"pythonPackage": package}), tmp_path)
    assert message == (
        f'spec.model.source.pythonPackage: "{package}" is not installed; '
        "try: pip install no-such-model-of-ours"
    )


def test_an_installed_package_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "model_that_must_not_run"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    given = with_model(handler="hf", source={"pythonPackage": f"{package.name}.inner"})
    assert on_this_machine(given, tmp_path) == given


def test_a_download_is_left_to_the_model_server(tmp_path: Path) -> None:
    given = with_model(handler="hf", source={"huggingFace": {"repo": "a/b"}})
    assert on_this_machine(given, tmp_path) == given


def test_a_volume_is_not_mounted_here(tmp_path: Path) -> None:
    volume = {"claimName": "models", "subPath": "minilm"}
    message = complaint(with_model(handler="hf", source={"volume": volume}), tmp_path)
    assert message == (
        'spec.model.source.volume: "models" is a volume of a cluster; '
        "here, name its folder: source.path"
    )


def test_a_secret_and_a_claim_are_said_to_be_without_effect() -> None:
    repository = {"repo": "a/b", "tokenSecretRef": {"name": "hub"}, "cacheClaimName": "models"}
    (warning,) = without_effect(with_model(handler="hf", source={"huggingFace": repository}))
    assert "huggingFace.tokenSecretRef (the token is read from HF_TOKEN)" in warning
    assert warning.endswith("spec.model.source.huggingFace.cacheClaimName")


def test_what_only_a_cluster_uses_is_said_to_be_without_effect() -> None:
    (warning,) = without_effect(with_model(handler="simulated", image="ours:1"))
    assert warning == "used on Kubernetes only, not by this run: spec.model.image"
    assert without_effect(with_model(handler="simulated", env={"A": "b"})) == ()
    mount = {"name": "cache", "mountPath": "/data"}
    own = with_model(protocol="V2", image="own:1", args=["-v"], volumeMounts=[mount])
    (warning,) = without_effect(own)
    assert warning.endswith("spec.model.image, spec.model.args, spec.model.volumeMounts")


def test_a_model_that_should_rest_is_served_here_all_the_same_and_said_so() -> None:
    resting = with_model(handler="simulated")
    resting = replace(resting, spec=replace(resting.spec, suspend=True))
    (warning,) = without_effect(resting)
    assert warning.endswith(": spec.suspend")


def test_a_date_is_a_text_as_kubernetes_reads_it(tmp_path: Path) -> None:
    file = written(tmp_path, "model: {handler: simulated, env: {SINCE: 2026-01-02}}\n")
    assert read_manifest_file(file).spec.model.env == (("SINCE", "2026-01-02"),)


@pytest.mark.parametrize("path", ["a\0b", "~nobody-of-that-name/x", "x" * 400, "\ud800"])
def test_what_cannot_be_a_path_is_named(tmp_path: Path, path: str) -> None:
    found = complaint(with_model(handler="hf", source={"path": path}), tmp_path)
    assert found.startswith("spec.model.source.path: ")


def test_links_in_a_circle_are_no_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    found = complaint(with_model(handler="hf", source={"path": "loop"}), tmp_path)
    assert found.startswith("spec.model.source.path: ")


def test_what_runs_here_is_no_package_with_a_model(tmp_path: Path) -> None:
    found = complaint(with_model(handler="hf", source={"pythonPackage": "__main__"}), tmp_path)
    assert "is not installed" in found


def test_a_variable_that_no_process_can_have_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, 'model: {handler: simulated, env: {A: "x\\0y"}}')
    (message,) = messages(file)
    assert message.startswith("spec.model.env: ")
    assert "has at A a value that is not a text without the character NUL" in message


@pytest.mark.parametrize("name", ["", "A=B", "A\\0"])
def test_a_name_that_no_variable_can_have_is_named(name: str, tmp_path: Path) -> None:
    file = written(tmp_path, f'model: {{handler: simulated, env: {{"{name}": x}}}}')
    (message,) = messages(file)
    assert message.startswith("spec.model.env: ")
    assert "has a key that is not the name of a variable" in message
