"""The program that fetches a model's files before the model server starts: the init container.

`python -m batchedmodel_model_server.sources.fetch` ends with 0 once the folder is whole. Started
again after an early end, it goes on where it was.
"""

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import (
    EXIT_WRONG_SETTINGS,
    FetchSettings,
    from_environment,
    source_from_json,
)
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.folder import model_folder

_CANNOT_FETCH: Final = 1
_SIGNALLED: Final = 128
_log = logging.getLogger("batchedmodel_model_server")


def main() -> int:
    """Fetch; 0 when the files are there, 1 when they cannot be had, 2 with wrong settings."""
    # The first process of a container is not ended by a signal that it has no handler for.
    signal.signal(signal.SIGTERM, _end)
    try:
        settings = from_environment(FetchSettings, os.environ)
        source = source_from_json(settings.source)
    except (InvalidManifest, InvalidInput) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_WRONG_SETTINGS
    logs.configure(settings.log_level, settings.log_format, logs.Process.FETCH)
    try:
        folder = model_folder(source, Path(settings.cache_folder), trust=settings.trust)
    except CannotLoad as error:
        return _failed(settings, str(error))
    except Exception as error:
        # People read the report at the model's resource, not a traceback.
        _log.exception("fetching failed")
        return _failed(settings, f"fetching failed: {type(error).__name__}: {error}")
    _log.info("the model's files are in %s", folder)
    return 0


def _failed(settings: FetchSettings, reason: str) -> int:
    _log.error("%s", reason)
    if settings.report_file:
        Path(settings.report_file).write_text(f"{reason}\n", "utf-8", errors="replace")
    return _CANNOT_FETCH


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(_SIGNALLED + number)


if __name__ == "__main__":
    sys.exit(main())
