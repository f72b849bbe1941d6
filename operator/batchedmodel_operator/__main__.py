"""Process entry of the operator: settings from the environment, then watch and work until told off.

Exit codes: 0 after SIGTERM or SIGINT, 1 when no API server is configured, 2 for wrong settings.
"""

import asyncio
import logging
import os
import random
import sys
import time
from datetime import UTC, datetime
from typing import Final

from batchedmodel_contract.environment import EXIT_WRONG_SETTINGS, LogLevel, from_environment
from batchedmodel_contract.mistakes import InvalidManifest
from batchedmodel_operator.cluster import KubernetesCluster, load_configuration
from batchedmodel_operator.errors import ClusterError
from batchedmodel_operator.handlers import registry, watch
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed import Key
from batchedmodel_operator.reconcile import Reconciler
from batchedmodel_operator.render import Images
from batchedmodel_operator.settings import OperatorSettings
from batchedmodel_operator.sidecars import SidecarAdmin
from batchedmodel_operator.watching import Definition, keep_watching, listen
from batchedmodel_operator.work_queue import Workers, WorkQueue

_log: Final = logging.getLogger("batchedmodel_operator")
_LOOKS_AT_ONCE: Final = 16


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    try:
        settings = from_environment(OperatorSettings, os.environ)
    except InvalidManifest as error:
        print(error, file=sys.stderr)  # noqa: T201  # logging is configured by these settings
        return EXIT_WRONG_SETTINGS
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    if settings.log_level is not LogLevel.DEBUG:
        # One line for each event of each object, all of which say "succeeded".
        # The second writes a line for each probe of the kubelet.
        for foreign in ("kopf", "aiohttp.access"):
            logging.getLogger(foreign).setLevel(logging.WARNING)
    try:
        asyncio.run(_run(settings))
    except ClusterError as error:
        _log.error("%s", error)
        return 1
    return 0


async def _run(settings: OperatorSettings) -> None:
    told = asyncio.Event()
    listen(told)
    cluster = KubernetesCluster(await load_configuration())
    sidecars = SidecarAdmin()
    reconciler = Reconciler(
        cluster=cluster,
        sidecars=sidecars,
        images=Images(
            sidecar=settings.sidecar_image,
            model_server=settings.model_server_image,
            pull_policy=settings.image_pull_policy,
        ),
        clock=time.monotonic,
        calendar=lambda: datetime.now(UTC),
    )
    workers: Workers[Key] = Workers(
        WorkQueue(jitter=random.random),
        reconciler.reconcile,
        at_most=_LOOKS_AT_ONCE,
        clock=time.monotonic,
    )

    async def watch_once(definition: Definition, stop: asyncio.Event) -> None:
        await watch(
            registry(workers.add, workers.longest_look, definition.changed),
            probe_port=settings.probe_port,
            stop=stop,
            take_signals=lambda: listen(told),
        )

    working = asyncio.create_task(workers.run(), name="workers")
    try:
        await keep_watching(watch_once, lambda: _serves_models(cluster), told)
    finally:
        workers.close()
        await working
        sidecars.close()
        await cluster.close()


async def _serves_models(cluster: KubernetesCluster) -> bool:
    try:
        return await cluster.serves(Kind.BATCHED_MODEL)
    except ClusterError:
        # Kopf meets the same, and goes on asking.
        return False


if __name__ == "__main__":
    sys.exit(main())
