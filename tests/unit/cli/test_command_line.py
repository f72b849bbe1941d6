import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from batchedmodel_cli import extras
from batchedmodel_cli.__main__ import main


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("batchedmodel 0.")


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["simulate", "--help"], ["diff", "--help"]]
)
def test_help_is_given(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert "manifest" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["--help", "simulate simulated.yaml --profile=simulated-profile.json --rate=9 --requests=100"],
)
def test_who_reads_no_more_of_the_output_ends_the_command_quietly(line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        ran = subprocess.run(
            [sys.executable, "-m", "batchedmodel_cli", *line.split()],
            cwd=Path(__file__).parents[3] / "examples",
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (141, "")


def test_without_a_command_the_commands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "COMMAND" in refusal(capsys)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_wrong_port_is_named(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(refusal(capsys, "run", "x.yaml", f"--port={port}").split())
    assert "Invalid value for '--port': " in said
    assert port in said


@pytest.mark.parametrize("host", ["", "a..b", "a" * 64])
def test_a_host_that_cannot_be_one_is_named(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "run", "x.yaml", f"--host={host}")
    assert f"{host!r} is no name or address of a host" in " ".join(said.split())


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("http://:80", "has no host that can be asked"),
        ("http://a..b", "has no host that can be asked"),
        ("http://a:0", "has no host that can be asked"),
        ("http://a:99999", "Port out of range 0-65535"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://a#b", "has more than a host and a port"),
        ("http://a?b", "has more than a host and a port"),
    ],
)
def test_an_upstream_that_nobody_can_reach_is_named(
    address: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "run", "x.yaml", f"--upstream={address}")
    assert f"{address!r} {rule}" in " ".join(said.split())


def test_a_profile_at_no_url_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).parents[3] / "examples" / "simulated.yaml")
    line = ["simulate", file, "--profile=http://[::1", "--rate=9"]
    assert main(line) == 2
    assert "is no URL" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "ftp://a", "http://a/v1", "https://"])
def test_an_upstream_that_is_no_address_is_named(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "run", "x.yaml", f"--upstream={address}")
    assert f"{address!r}" in said
    assert "is not a URL such as http://127.0.0.1:8080" in " ".join(said.split())


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("--rate=0", "Invalid value for '--rate': '0' is not a number from 0.1 to 1e+06"),
        ("--rate=nan", "Invalid value for '--rate': 'nan' is not a number"),
        (
            "--replicas=65",
            "Invalid value for '--replicas': '65' is not a whole number from 1 to 64",
        ),
        (
            "--burstiness=many",
            "Invalid value for '--burstiness': 'many' is not a number from 0.1 to 10",
        ),
        ("--lengths=0", "Invalid value for '--lengths': '0' is not a whole number from 1"),
        ("--lengths=lognormal:60", "Invalid value for '--lengths': 'lognormal:60' is not"),
        ("--lengths=lognormal:60,9", "sigma above 0 and up to 5"),
        (
            "--requests=1",
            "Invalid value for '--requests': '1' is not a whole number from 100 to 100000",
        ),
        ("--seed=-1", "Invalid value for '--seed': '-1' is not a whole number"),
        (
            "--hand-off-ms=-1",
            "Invalid value for '--hand-off-ms': '-1' is not a number from 0 to 1000",
        ),
        ("--trace=x.csv", "--trace is not allowed with --rate"),
    ],
)
def test_a_wrong_option_of_simulate_is_named_with_its_value_and_rule(
    option: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rule in refusal(capsys, "simulate", "x.yaml", "--rate=100", option)


def test_a_wrong_manifest_ends_with_2_and_a_message_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("kind: Pod\n", "utf-8")
    assert main(["run", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert all(line.startswith(f"{file}: ") for line in output.err.splitlines())
    assert f'{file}: kind: "Pod" is not BatchedModel' in output.err


@pytest.mark.slow
@pytest.mark.parametrize("line", ["run {}", "simulate {} --rate=9", "diff {}"])
def test_an_interrupt_while_a_manifest_is_awaited_ends_the_command_quietly(
    line: str, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with (
        subprocess.Popen(
            [sys.executable, "-m", "batchedmodel_cli", *line.format(pipe).split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as command,
        # Opens once the command waits at the other end.
        pipe.open("w"),
    ):
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=30)
    assert (command.returncode, said) == (130, "")


def test_without_a_disk_to_write_to_a_run_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    file = Path(__file__).parents[3] / "examples" / "simulated.yaml"
    assert main(["run", str(file), "--port", "0"]) == 1
    said = capsys.readouterr().err
    assert "What the processes share cannot be kept anywhere: " in said
    assert "No such file or directory" in said


@pytest.mark.slow
def test_an_output_on_a_full_disk_is_named_and_nothing_else_is_said() -> None:
    line = "simulate simulated.yaml --profile=simulated-profile.json --rate=9 --requests=100"
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "batchedmodel_cli", *line.split()],
            cwd=Path(__file__).parents[3] / "examples",
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, "batchedmodel: No space left on device\n")


@pytest.mark.slow
def test_a_command_without_an_output_is_carried_out() -> None:
    """As a service manager may start it; it ended in a traceback."""
    line = f"exec {shlex.quote(sys.executable)} -m batchedmodel_cli --version >&-"
    ran = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def carried_out(code: str) -> str:
    """What another interpreter prints, which has imported nothing yet."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout


@pytest.mark.slow
def test_help_of_the_whole_command_imports_no_subcommand_and_no_contract() -> None:
    """It took 0.6 s, most of it for modules of `diff` and of the manifest."""
    said = carried_out(
        "import sys\nfrom batchedmodel_cli.__main__ import main\nmain(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.endswith('.command') or 'contract' in m))"
    )
    assert said.endswith("\n[]\n")


@pytest.mark.parametrize("command", ["run", "simulate", "diff", "upgrades"])
def test_the_help_of_each_command_has_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert f"Examples:\n    batchedmodel {command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "number", "completion"),
    [
        ("batchedmodel ", "1", "simulate"),
        ("batchedmodel run --adm", "2", "--admin-port"),
        ("batchedmodel upgrades --mode R", "3", "Rolling"),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    words: str,
    number: str,
    completion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_BATCHEDMODEL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", number)
    assert main([]) == 0
    assert f"plain,{completion}" in capsys.readouterr().out.splitlines()


def test_a_command_that_is_none_is_refused_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "Did you mean 'simulate'?" in refusal(capsys, "simulat")


def test_a_simulation_without_traffic_is_refused_with_the_options_that_give_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "one of --rate, --trace, --from is required" in refusal(capsys, "simulate", "x.yaml")


def test_a_library_that_is_there_and_broken_is_not_called_missing() -> None:
    """It said "not installed:" and nothing, and to install what was installed."""
    broken = ModuleNotFoundError("No module named 'orjson.lost'", name="orjson.lost")
    with pytest.raises(ModuleNotFoundError, match="lost"):
        extras.explained(broken)
