"""`batchedmodel init`: what it writes, and that it overwrites nothing."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.manifest_file import on_this_machine, read_manifest_file
from support.empty_checkpoints import folder_with


def test_a_checkpoints_files_are_a_valid_manifest_and_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_with(tmp_path / "Chat", "a.safetensors", architectures=["LlamaForCausalLM"])
    monkeypatch.chdir(tmp_path)
    assert main(["init", "service", "--model", "Chat"]) == 0
    written = ["service/chat.yaml", "service/chat-request.sh"]
    said = [f"wrote {name}" for name in written] + [f"serve it: batchedmodel run {written[0]}"]
    assert capsys.readouterr().out.splitlines() == said
    manifest = read_manifest_file(Path(written[0]))
    assert manifest.spec.generation is not None
    source = on_this_machine(manifest, Path("service")).spec.model.source
    assert source is not None
    assert source.path == str(tmp_path / "Chat")
    assert os.access(written[1], os.X_OK)
    assert "/v1/completions" in Path(written[1]).read_text("utf-8")
    assert main(["validate", written[0]]) == 0


def test_the_line_that_serves_it_names_a_folder_with_spaces_as_a_shell_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my first service"
    assert main(["init", str(folder), "--handler", "--name", "mine"]) == 0
    [line] = [one for one in capsys.readouterr().out.splitlines() if one.startswith("serve it: ")]
    assert shlex.split(line)[-1] == str(folder / "mine.yaml")


def test_no_file_is_overwritten_and_then_none_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine" / "handler.py"
    folder_with(own.parent)
    own.write_text("precious", "utf-8")
    assert main(["init", str(tmp_path), "--handler", "--name", "mine"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{own}: is there already, so nothing is written",
        "--name names other files, and FOLDER another place",
    ]
    assert own.read_text("utf-8") == "precious"
    assert sorted(tmp_path.rglob("*")) == [own.parent, own]


def test_a_handler_is_written_beside_the_weights_that_it_may_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder_with(tmp_path / "weights", "mine.safetensors")
    assert main(["init", str(tmp_path), "--handler", "--model", str(weights)]) == 0
    assert 'path / "mine.safetensors"' in (weights / "handler.py").read_text("utf-8")
    manifest = read_manifest_file(tmp_path / "weights.yaml")
    assert manifest.spec.model.handler == "handler.py:Model"
    assert f"test it: python -m pytest {weights}\n" in capsys.readouterr().out
    assert main(["init", str(tmp_path), "--handler", "--model", "json"]) == 2
    assert "a handler's file lies among the model's" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 2
    assert "--model is missing, or --handler" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file"), "--handler"]) == 1
    assert f"{tmp_path / 'file' / 'file.yaml'}: cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a" * 300, "circle"])
def test_a_folder_that_cannot_be_looked_up_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ended in a traceback."""
    (tmp_path / "circle").symlink_to("circle")
    folder = str(tmp_path / name)
    assert main(["init", folder, "--handler", "--name", "own"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"{folder}: cannot be looked up: ")


def test_the_line_that_serves_can_be_typed_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had a folder with a space as two words."""
    assert main(["init", str(tmp_path / "it's mine"), "--handler", "--name", "own"]) == 0
    line = capsys.readouterr().out.splitlines()[-1].removeprefix("serve it: ")
    file = str(tmp_path / "it's mine" / "own.yaml")
    assert shlex.split(line) == ["batchedmodel", "run", file]


@pytest.mark.slow
def test_a_terminal_is_asked_what_the_options_leave_open(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "batchedmodel_cli", "init", "."],
        cwd=folder_with(tmp_path / "service"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as command:
        os.close(theirs)
        os.write(ours, b"\n\nBig\nmine\n")
        assert command.wait(180) == 0, os.read(ours, 10_000)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "Write a handler of your own? [Y/n]: " in said
    assert '"Big" is not a name' in said
    assert (tmp_path / "service" / "mine" / "handler.py").is_file()
