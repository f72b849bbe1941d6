"""A port that another process holds."""

import os
import socket
from pathlib import Path

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_cli.run.ports import holder
from support.repository import ROOT


@pytest.fixture
def held() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_a_free_port_has_no_holder(held: socket.socket) -> None:
    port = held.getsockname()[1]
    assert holder("127.0.0.1", port) is not None
    held.close()
    assert holder("127.0.0.1", port) is None
    assert holder("192.0.2.1", port) is None, "what is no address here is not held"


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_who_holds_a_port_is_named_before_anything_starts(
    option: str, held: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model was loaded beside a batcher that asked whether another program uses the port."""
    port = str(held.getsockname()[1])
    with held:
        assert (
            main(["run", str(ROOT / "examples" / "simulated.yaml"), "--port=0", option, port]) == 1
        )
    said = capsys.readouterr()
    assert said.out == ""
    command = Path(f"/proc/{os.getpid()}/cmdline").read_text("utf-8").split("\0")[0]
    assert said.err.startswith(f'Port {port} is held by process {os.getpid()} ("{command}')
    assert said.err.endswith(f"; {option} chooses another.\n")


def test_a_port_without_a_listener_is_held_too() -> None:
    """It was told of \"a process that this user may not see\", to root."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        who = holder("127.0.0.1", bound.getsockname()[1])
    assert who == "a process that does not listen there, or that this user may not see"


def test_two_services_at_one_port_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The batcher asked whether another program uses the port, beside a model that loaded."""
    line = ["run", str(ROOT / "examples" / "simulated.yaml"), "--port=8123", "--admin-port=8123"]
    assert main(line) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--port and --admin-port are both 8123" in said.err
