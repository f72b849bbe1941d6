"""To listen on a port, or to say why that cannot be."""

from collections.abc import Iterator
from contextlib import contextmanager


class CannotListen(Exception):
    """A port is taken or forbidden; the message says which."""


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Around what binds a port; raises `CannotListen`."""
    try:
        yield
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: no host has such a name") from error
