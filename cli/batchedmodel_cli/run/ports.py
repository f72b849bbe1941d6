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
        for one in bound_sockets(host, port):
            one.close()
    except OSError as error:
        return _listener(port) if error.errno == errno.EADDRINUSE else None
    return None


def _listener(port: int) -> str:
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None:
                return f"process {one.pid} ({shown(' '.join(psutil.Process(one.pid).cmdline()))})"
    return "a process that does not listen there, or that this user may not see"
