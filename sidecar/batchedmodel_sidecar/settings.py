"""Reads the batch settings from a folder and says when they change.

In a pod the folder is a mounted ConfigMap: the kubelet writes a new version beside the old one and
swaps a symbolic link named ``..data``. Elsewhere somebody writes the file. Both show up as events
of the folder itself, so nothing is read periodically.
"""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings, settings_from_json
from batchedmodel_contract.processes.settings_file import read_settings_file

logger: Final = logging.getLogger(__name__)
_GONE: Final = Mask.DELETE_SELF | Mask.MOVE_SELF
_CHANGES: Final = Mask.CLOSE_WRITE | Mask.MOVED_TO | _GONE


class SettingsFolder:
    """The watched folder; `errors` counts versions that could not be used."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.errors = 0

    def read(self) -> BatchSettings:
        """The settings as they stand; raises `InvalidInput`."""
        return settings_from_json(read_settings_file(self._folder / FILE_NAME))

    async def changes(self, present: BatchSettings) -> AsyncGenerator[BatchSettings, None]:
        """Each later version that differs and can be used; a bad one leaves the old in force."""
        with Inotify() as events:
            events.add_watch(self._folder, _CHANGES)
            while True:
                # Read first: a change between the first reading and the watch would go unseen.
                newest = self._newer(present)
                if newest is not None:
                    yield (present := newest)
                while (await events.get()).mask & _GONE:
                    self.errors += 1
                    logger.error("%s is gone: edits of the settings go unseen", self._folder)

    def _newer(self, present: BatchSettings) -> BatchSettings | None:
        try:
            settings = self.read()
        except InvalidInput as error:
            # Also met in the middle of a swap; the event that ends the swap comes next.
            self.errors += 1
            logger.warning("settings not used: %s", error)
            return None
        return None if settings == present else settings
