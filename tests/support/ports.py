"""Ports for processes that must be told theirs before they start."""

import contextlib
import random
import socket


def unused_port() -> int:
    """One that nobody has, and that no connection is given before its process takes it."""
    while True:
        port = random.randrange(20_000, 32_000)  # below what systems give to connections
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("0.0.0.0", port))
            return port
