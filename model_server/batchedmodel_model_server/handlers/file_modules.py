"""Imports a handler's own file, and what it imports from the files beside it.

Each load makes a package of its own out of the folder, so that `from . import net` finds the file
there and nowhere else, at once or later, and two versions beside each other share no module.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final

_PACKAGE: Final = "batchedmodel_handler_"
_numbers: Final = count(1)


def import_file(file: Path) -> ModuleType:
    """The module in a file with an identifier for a name; raises whatever its code raises."""
    package = f"{_PACKAGE}{next(_numbers)}"
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(file.parent)]
    sys.modules[package] = module_from_spec(spec)
    # A folder that was written to a moment ago may be remembered as it was.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{package}.{file.stem}")
    except BaseException:
        forget(package)
        raise


def forget(module: str) -> None:
    """Let go of all that came with a handler's file, if the module of this name is of such."""
    package = module.partition(".")[0]
    if not package.startswith(_PACKAGE):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def files_beside(file: Path, error: BaseException) -> str:
    """What helps where a file beside it was imported as if it were installed; else nothing."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name is None or not name.isidentifier() or not file.with_name(f"{name}.py").is_file():
        return ""
    return f"; {name}.py lies beside it: from . import {name}"
