"""Says which process holds a port, before a model is loaded for a service that cannot listen."""

import errno
from contextlib import suppress

import psutil

from batchedmodel_contract.invalid_input import shown
from batchedmodel_contract.processes.listening import bound_sockets


def holder(host: str, port: int) -> str | None:
    """Who listens where we would, in words; None where the port is free.

    Whatever else keeps a process from listening there it says itself.
    """
    try:
        for bound in bound_sockets(host, port):
            bound.close()
    except OSError as error:
        return _listener(port) if error.errno == errno.EADDRINUSE else None
    return None


def _listener(port: int) -> str:
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if listens and connection.pid is not None:
                words = psutil.Process(connection.pid).cmdline()
                return f"process {connection.pid} ({shown(' '.join(words))})"
    return "a process that does not listen there, or that this user may not see"
