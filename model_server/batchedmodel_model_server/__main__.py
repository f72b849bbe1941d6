"""Entry of the process: settings, log, socket, signals, and the order of start and end."""

import asyncio
import gc
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import uvloop

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import (
    EXIT_DEVICE_LOST,
    EXIT_WRONG_SETTINGS,
    PREFIX,
    ModelServerSettings,
    from_environment,
    source_from_json,
)
from batchedmodel_model_server.execution.device_thread import DeviceThread, either
from batchedmodel_model_server.lifecycle.loading import StartUp, process_age
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.link import unix_socket
from batchedmodel_model_server.link.listener import Listener
from batchedmodel_model_server.machine import bound_libraries, read_processor

_LAST_WRITES_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 0.5
_TERMINATED: Final = 128 + signal.SIGTERM
_OBJECTS_BETWEEN_COLLECTIONS: Final = 100_000  # while the model is brought up
_log = logging.getLogger("batchedmodel_model_server")


def main() -> int:
    """Serve until told to stop.

    The process ends with 0 after a drain, 2 when nothing could be started, 4 when the device was
    lost, 143 when a pass that hangs was cut off.
    """
    try:
        settings = from_environment(ModelServerSettings, os.environ)
        source = source_from_json(settings.source)
    except (InvalidManifest, InvalidInput) as error:
        return _refused(str(error))
    logs.configure(
        settings.log_level,
        settings.log_format,
        logs.Process.MODEL_SERVER,
        model=settings.model_name,
    )
    bound_libraries(read_processor(), os.environ)
    try:
        uvloop.run(_serve(settings, source))
    except OSError as error:
        return _refused(f"{PREFIX}MODEL_SOCKET: {settings.model_socket}: {error}")


async def _serve(settings: ModelServerSettings, source: Source | None) -> NoReturn:
    path = Path(settings.model_socket)
    listening = unix_socket.bind(path)
    bound = unix_socket.identity(path)
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, told_to_stop.set)
    compute = DeviceThread(loop)
    compute.start()
    service = ModelService(settings, source, compute)
    listener = Listener(service, listening)
    listener.open()
    os.register_at_fork(after_in_child=partial(unix_socket.leave_to_parent, path))
    _log.info("serving %s on %s", settings.model_name, path)
    bringing_up = asyncio.create_task(_bring_up(service))
    await either(told_to_stop, service.lost)

    # Answers first, then the connections. The file goes last: callers should not find a socket that
    # refuses while accepted batches are still being computed.
    if not service.lost.is_set():
        await service.drain(listener.frames_whole)
    if not service.hung:
        # Callers of a lost device are just being told so; those of a hung pass hear nothing more.
        await listener.close(_LAST_WRITES_SECONDS)
    unix_socket.unlink(path, bound)
    bringing_up.cancel()
    compute.finish()
    compute.join(_JOIN_SECONDS)
    # A pass that hangs is cut off, as by the signal itself.
    code = EXIT_DEVICE_LOST if service.lost.is_set() else _TERMINATED if service.hung else 0
    _log.info("stopped")
    # The interpreter's own end would take apart what the libraries have left. That costs a third of
    # a second of CPU, for which a starved process waits many seconds, and it aborts or hangs while
    # a thread is inside torch or the device is lost.
    logging.shutdown()
    os._exit(code)


async def _bring_up(service: ModelService) -> None:
    """Bring the model up while the collector looks for garbage more rarely.

    Libraries leave half a million objects behind for good. To look through them costs a fifth of
    the time that imports take; frozen, they cost no half second of the event loop later.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *usual[1:])
    try:
        await service.bring_up(StartUp(process_age()))
    finally:
        gc.freeze()
        gc.set_threshold(*usual)


def _refused(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return EXIT_WRONG_SETTINGS


if __name__ == "__main__":
    sys.exit(main())
