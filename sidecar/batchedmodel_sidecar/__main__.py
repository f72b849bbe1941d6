"""Process entry of the sidecar: settings from the environment, signals, run.

Exit codes: 0 when everything accepted was served, 1 when the drain's limit ended it, 2 for wrong
settings, 3 when a port cannot be had.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
from typing import Final

import uvloop

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest, Mistake
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import (
    EXIT_CANNOT_LISTEN,
    EXIT_WRONG_SETTINGS,
    PREFIX,
    SidecarSettings,
    from_environment,
)
from batchedmodel_http.ports.listener import CannotListen
from batchedmodel_sidecar.body.heap import fix_mapped_sizes
from batchedmodel_sidecar.service import Service
from batchedmodel_sidecar.settings import SettingsFolder

_OBJECTS_BETWEEN_COLLECTIONS: Final = 20_000
_NO_HUGE_PAGES: Final = 41  # PR_SET_THP_DISABLE of prctl


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    try:
        settings = from_environment(SidecarSettings, os.environ)
        _require_one_server(settings)
    except InvalidManifest as error:
        print(error, file=sys.stderr)  # noqa: T201  # logging is configured by these settings
        return EXIT_WRONG_SETTINGS
    logs.configure(
        settings.log_level,
        settings.log_format,
        logs.Process.SIDECAR,
        model=settings.model_name,
    )
    # For large bodies and answers numpy asks for huge pages. The first byte that is written to one
    # stops the loop until all two megabytes are there: 9 ms on a virtual machine.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)
    fix_mapped_sizes()
    # What is loaded now stays for good: a full collection that looks at all of it takes tens of
    # milliseconds, in which no batch leaves.
    gc.collect()
    gc.freeze()
    # A request makes no cycles, so its objects need no collector; looking for cycles whenever some
    # hundred objects are alive took a twelfth of the CPU.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 50)
    try:
        emptied = uvloop.run(_run(settings))
    except InvalidInput as error:
        logging.getLogger(__name__).error("%s", error)
        return EXIT_WRONG_SETTINGS
    except CannotListen as error:
        logging.getLogger(__name__).error("%s", error)
        return EXIT_CANNOT_LISTEN
    return 0 if emptied else 1


def _require_one_server(settings: SidecarSettings) -> None:
    if bool(settings.model_socket) == bool(settings.upstream_url):
        fields = f"{PREFIX}MODEL_SOCKET and {PREFIX}UPSTREAM_URL"
        raise InvalidManifest((Mistake(field=fields, rule="need exactly one of the two"),))


async def _run(settings: SidecarSettings) -> bool:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = Service(settings, SettingsFolder(settings.settings_folder))
    return await service.run(stop)


if __name__ == "__main__":
    sys.exit(main())
