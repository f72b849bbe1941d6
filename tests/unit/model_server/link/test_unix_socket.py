"""The socket file: its rights, and whose it is."""

import os
import socket
import stat
import time
from pathlib import Path

import pytest

from batchedmodel_model_server.link import unix_socket


def test_the_group_may_connect_and_others_may_not(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with unix_socket.bind(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_the_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    unix_socket.bind(path).close()
    unix_socket.bind(path).close()


def test_a_socket_that_is_served_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with unix_socket.bind(path) as first:
        first.listen()
        with pytest.raises(FileExistsError, match="is served by another process"):
            unix_socket.bind(path)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    path.touch()
    with pytest.raises(FileExistsError, match="exists and is not a socket"):
        unix_socket.bind(path)


def test_a_successors_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with unix_socket.bind(path):
        mine = unix_socket.identity(path)
        successor = tmp_path / "successor"
        with unix_socket.bind(successor):
            successor.rename(path)
            unix_socket.unlink(path, mine)
            assert path.exists()
            unix_socket.unlink(path, unix_socket.identity(path))
            assert not path.exists()
            unix_socket.unlink(path, mine)


def test_a_file_of_the_same_number_but_another_time_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with unix_socket.bind(path):
        mine = unix_socket.identity(path)
        # A change of rights stands in for a successor to which the number was given again. The
        # file system's clock may tick some milliseconds apart.
        until = time.monotonic() + 2
        while unix_socket.identity(path) == mine and time.monotonic() < until:
            path.chmod(0o600)
        unix_socket.unlink(path, mine)
        assert path.exists()


def test_a_forked_process_leaves_all_that_came_to_the_path(tmp_path: Path) -> None:
    path, other = tmp_path / "model.sock", tmp_path / "other.sock"
    listening, others = unix_socket.bind(path), unix_socket.bind(other)
    listening.listen()
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(str(path))
    accepted, _ = listening.accept()
    try:
        unix_socket.leave_to_parent(path)
        assert caller.recv(1) == b""
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(listening.fileno())
        assert stat.S_ISSOCK(os.fstat(others.fileno()).st_mode)
    finally:
        accepted.detach()
        listening.detach()
        caller.close()
        others.close()
