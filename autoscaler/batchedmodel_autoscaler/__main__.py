"""Process entry of the autoscaler: settings from the environment, signals, run.

Exit codes: 0 after SIGTERM, 1 without credentials for a cluster or after a failure of its own,
2 for wrong settings, 3 when a port cannot be had.
"""

import asyncio
import logging
import os
import signal
import sys
from typing import Final

from batchedmodel_autoscaler.service import Service
from batchedmodel_autoscaler.settings import AutoscalerSettings
from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import (
    EXIT_CANNOT_LISTEN,
    EXIT_WRONG_SETTINGS,
    from_environment,
)
from batchedmodel_http.ports.listener import CannotListen
from batchedmodel_kube.client import Client
from batchedmodel_kube.errors import ClusterError

logger: Final = logging.getLogger(__name__)
EXIT_FAILED: Final = 1


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    try:
        settings = from_environment(AutoscalerSettings, os.environ)
    except InvalidManifest as error:
        print(error, file=sys.stderr)  # noqa: T201  # logging is configured by these settings
        return EXIT_WRONG_SETTINGS
    logs.configure(settings.log_level, settings.log_format, logs.Process.AUTOSCALER)
    # Theirs at debug hold whole requests.
    for foreign in ("asyncio", "kubernetes", "aiohttp"):
        logging.getLogger(foreign).setLevel(logging.WARNING)
    try:
        asyncio.run(_run(settings))
    except (ClusterError, CannotListen) as error:
        logger.error("%s", error)
        return EXIT_CANNOT_LISTEN if isinstance(error, CannotListen) else EXIT_FAILED
    except Exception:
        logger.exception("failed unexpectedly: it ends, to be started again")
        return EXIT_FAILED
    return 0


async def _run(settings: AutoscalerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster, leases = await Client.connect(os.environ), await Client.connect(os.environ)
    await Service(settings, cluster, leases).run(stop)


if __name__ == "__main__":
    sys.exit(main())
