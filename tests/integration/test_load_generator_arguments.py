"""What the load generator refuses before it sends anything, and how it is compiled."""

import subprocess
from os import environ
from pathlib import Path

import pytest

from load_generator import (
    ClosedLoop,
    LoadGeneratorError,
    Target,
    build_load_generator,
    run_load,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port=80"], "--duration or --requests is missing"),
        (["--duration=1"], "--port is missing"),
        (["--port=0", "--duration=1"], "--port 0: not a whole number from 1 to 65535"),
        (["--port=80", "--duration=inf"], "--duration inf: not a number from 0.001 to 3600"),
        (["--port=80", "--duration=nan"], "--duration nan: not a number"),
        (["--port=80", "--requests=-1"], "--requests -1: not a whole number"),
        (["--port=80", "--requests=1", "--host=10.0.0.1"], "not a numeric loopback address"),
        (["--port=80", "--requests=1", "--host=localhost"], "not a numeric loopback address"),
        (["--port=80", "--requests=1", "--method=PUT"], "neither GET nor POST"),
        (["--port=80", "--requests=1", "--path=x"], "does not begin with /"),
        (["--port=80", "--requests=1", "--path=/a b"], "not printable ASCII"),
        (["--port=80", "--requests=1", "--header=X"], "not of the form NAME: VALUE"),
        (["--port=80", "--requests=1", "--header=X: a\r\nY: b"], "a control character"),
        (["--port=80", "--requests=1", "--header=content-length: 3"], "sets this header itself"),
        (["--port=80", "--requests=1", "--body=/no/such"], "No such file"),
        (["--port=80", "--requests=1", "--seed=1"], "--seed is for --rate"),
        (["--port=80", "--rate=1e6", "--duration=3600"], "arrivals in all"),
        (["--port=80", "--requests=1", "surplus"], "surplus: not an option"),
        (["--port=80", "--wrong"], "unrecognized option"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_sent(arguments: list[str], message: str) -> None:
    program = build_load_generator(environ)
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert message in ended.stderr


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("bodies", b"", "no body in it"),
        ("bodies", b"\x05\x00\x00\x00abc", "the body at byte 0 is cut short"),
        ("bodies", b"\x01\x00\x00\x00a\x00", "1 bytes too many at the end"),
        ("arrivals", b"", "no arrival in it"),
        ("arrivals", b"5\n4\n", "number 2 is earlier than the one before"),
        ("arrivals", b"5\nx\n", "number 2 is not a whole number"),
        ("arrivals", b"-5\n", "number 1 is not a whole number"),
    ],
)
def test_a_wrong_file_is_named_and_nothing_is_sent(
    option: str, content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    bound = [] if option == "arrivals" else ["--requests=1"]
    ended = subprocess.run(
        [build_load_generator(environ), "--port=80", f"--{option}={file}", *bound],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert message in ended.stderr


def test_the_reason_of_a_refusal_reaches_the_caller() -> None:
    with pytest.raises(LoadGeneratorError, match="not a numeric loopback address"):
        run_load(Target(host="192.0.2.1", port=80), ClosedLoop(connections=1, requests=1))


def test_the_program_is_compiled_once(tmp_path: Path) -> None:
    environment = {**environ, "XDG_CACHE_HOME": str(tmp_path)}

    program = build_load_generator(environment)
    compiled = program.stat()

    assert build_load_generator(environment).stat() == compiled
    assert list((tmp_path / "batchedmodel").iterdir()) == [program]


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}

    with pytest.raises(LoadGeneratorError, match="needs a C compiler, and none of cc, gcc, clang"):
        build_load_generator(environment)
