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
        assert main(["run", str(ROOT / "examples" / "simulated.yaml"), option, port]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    command = Path(f"/proc/{os.getpid()}/cmdline").read_text("utf-8").split("\0")[0]
    assert said.err.startswith(f'Port {port} is held by process {os.getpid()} ("{command}')
    assert said.err.endswith(f"; {option} chooses another.\n")
