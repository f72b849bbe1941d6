"""Which adapters there should be, by the file that names them and the folder that holds them.

In a pod the file lies in a mounted ConfigMap, elsewhere somebody writes it. Adapters' folders are
written by whoever makes adapters. File systems that other machines write to tell of no change, so
all of it is looked at again and again.
"""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import ADAPTERS_FILE, AdapterSettings, adapters_from_json
from batchedmodel_contract.manifest.adapters import ADAPTER_NAME, MOST_ITEMS
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.processes.settings_file import read_settings_file
from batchedmodel_contract.schema.rules import Broken
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.folder import Content


class Look(NamedTuple):
    """What one look at the file and the folders has found."""

    settings: AdapterSettings
    sources: Mapping[str, Source] = {}
    """Of the adapters that there should be, by name."""
    digests: Mapping[str, str] = {}
    """Of those that lie on a disk: another one where files have changed."""
    problems: tuple[str, ...] = ()

    def again(self, folder: Path, find: Callable[[Source], Content]) -> "Look":
        """What there is now; `folder` has the file, `find` says what a source holds.

        It may take as long as a remote file system lets it wait.
        """
        settings, problems = self.settings, list[str]()
        try:
            settings = read_settings(folder)
        except InvalidInput as error:
            problems.append(f"settings not used: {error}")  # or half of them is written
        sources, problem = wanted_sources(settings, self.sources)
        digests: dict[str, str] = {}
        for name, source in sources.items():
            if source.path is None:
                continue
            try:
                digests[name] = find(source).digest
            except (CannotLoad, OSError) as error:
                digests[name] = str(error)
        return Look(settings, sources, digests, (*problems, problem) if problem else (*problems,))


def read_settings(folder: Path) -> AdapterSettings:
    """What the file in this folder says; raises `InvalidInput`."""
    return adapters_from_json(read_settings_file(folder / ADAPTERS_FILE))


def wanted_sources(
    settings: AdapterSettings, before: Mapping[str, Source]
) -> tuple[dict[str, Source], str]:
    """Those that are listed and each folder in the one that is named; and what is wrong with it.

    Where that one cannot be read just now, those of `before` that lie in it are still wanted.
    """
    listed = {item.name: item.source for item in settings.items}
    if settings.folder is None:
        return listed, ""
    problem = ""
    try:
        with os.scandir(settings.folder) as entries:
            names = sorted(entry.name for entry in entries if _is_adapter(entry))
    except (FileNotFoundError, NotADirectoryError) as error:
        names, problem = [], f"there is no folder of adapters: {error}"
    except OSError as error:
        names = [name for name, source in before.items() if source == _in(settings.folder, name)]
        problem = f"the folder of adapters cannot be read: {error}"
    if len(names) > MOST_ITEMS:
        problem = f"{settings.folder} has {len(names)} adapters; only {MOST_ITEMS} count"
        # None that is served makes room for one that came later.
        names = sorted(names, key=lambda name: name not in before)[:MOST_ITEMS]
    return {name: _in(settings.folder, name) for name in names} | listed, problem


def _in(folder: str, name: str) -> Source:
    return Source(path=os.path.join(folder, name))


def _is_adapter(entry: os.DirEntry[str]) -> bool:
    try:
        ADAPTER_NAME.read(entry.name)
        return entry.is_dir()
    except Broken:
        return False  # such as lost+found, or hidden
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return False
        raise
