"""Makes the handler that the manifest names: one of ours, or a class of somebody's own.

A handler's own file is imported in a package that is made out of its folder anew for each load. So
`from . import net` finds the file beside it and nowhere else, at once or later, and two versions
beside each other share no module.
"""

import importlib
import inspect
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final

from batchedmodel_contract.manifest.source import is_file_handler
from batchedmodel_model_server.api.handler import PARAMETERS, Handler
from batchedmodel_model_server.errors import CannotLoad, words_with_place

_OURS: Final = {
    "hf": "batchedmodel_model_server.handlers.hf:HuggingFace",
    "simulated": "batchedmodel_model_server.handlers.simulated:Simulated",
}

_PACKAGE: Final = "batchedmodel_handler_"
_numbers: Final = count(1)
_METHODS: Final = ("device", "load", "check", "forward", "predicted_seconds", "unload")


def make_handler(
    name: str, parameters: Mapping[str, str], folder: Path | None = None, *, trust: bool = False
) -> Handler:
    """The handler with its parameters, not loaded yet; raises `CannotLoad`.

    `folder` holds the model's files, among them the handler's if its name says so; code there is
    run only with `trust`.
    """
    module_name, colon, class_name = _OURS.get(name, name).partition(":")
    if not colon:
        raise CannotLoad(f"handler {name} is not {', '.join(_OURS)} or package.module:Class")
    if is_file_handler(name):
        module = _module_in(name, folder, module_name, trust=trust)
    else:
        try:
            module = importlib.import_module(module_name)
        except BaseException as error:
            raise CannotLoad(
                f"handler {name}: {module_name} cannot be imported: "
                f"{words_with_place(error, module_name)}"
            ) from error
    try:
        kind = _class_in(name, module, class_name)
        for given in parameters:
            if given not in kind.parameter_names:
                known = ", ".join(kind.parameter_names) or "none"
                raise CannotLoad(
                    f"{PARAMETERS}.{given}: is not known to handler {name}; known: {known}"
                )
        handler = kind()
    except BaseException as error:
        forget(module.__name__)
        if isinstance(error, CannotLoad):
            raise
        reason = words_with_place(error, module.__name__)
        raise CannotLoad(f"handler {name} cannot be made: {reason}") from error
    handler.parameters, handler.trusted = parameters, trust
    return handler


def _module_in(name: str, folder: Path | None, file_name: str, *, trust: bool) -> ModuleType:
    """The module that a file among the model's own holds."""
    if not trust:
        raise CannotLoad(
            f"handler {name}: code among the model's files is run only with "
            "spec.model.trustRemoteCode: true"
        )
    if folder is None:
        raise CannotLoad(f"handler {name}: there is no spec.model.source to look for {file_name}")
    file = folder / file_name
    if not file.is_file():
        raise CannotLoad(f"handler {name}: {folder} has no {file_name}")
    package = f"{_PACKAGE}{next(_numbers)}"
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(file.parent)]
    sys.modules[package] = module_from_spec(spec)
    # A folder that was written to a moment ago may be remembered as it was.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{package}.{file.stem}")
    except BaseException as error:
        forget(package)
        reason = f"{words_with_place(error, package)}{_file_beside(file, error)}"
        raise CannotLoad(f"handler {name}: {file} cannot be run: {reason}") from error


def forget(module: str) -> None:
    """Let go of all that came with a handler's file, if the module of this name is of such."""
    package = module.partition(".")[0]
    if not package.startswith(_PACKAGE):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _file_beside(file: Path, error: BaseException) -> str:
    """What helps where a file beside it was imported as if it were installed; else nothing."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name is None or not name.isidentifier() or not file.with_name(f"{name}.py").is_file():
        return ""
    return f"; {name}.py lies beside it: from . import {name}"


def _class_in(name: str, module: ModuleType, class_name: str) -> type[Handler]:
    kind = getattr(module, class_name, None)
    if kind is None:
        raise CannotLoad(f"handler {name}: {module.__name__} has no {class_name}")
    if not inspect.isclass(kind) or not issubclass(kind, Handler):
        base = f"{Handler.__module__}.{Handler.__name__}"
        raise CannotLoad(f"handler {name}: {class_name} is not a subclass of {base}")
    if kind.forward is Handler.forward:
        raise CannotLoad(f"handler {name}: {class_name} has no forward method")
    for method in _METHODS:
        given = getattr(kind, method)
        if not callable(given):
            raise CannotLoad(f"handler {name}: {class_name}.{method} is not a method")
        if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
            raise CannotLoad(
                f"handler {name}: {class_name}.{method} is async; methods of handlers run on a "
                "thread of their own and are plain functions"
            )
    for field in ("parameter_names", "libraries"):
        names = getattr(kind, field)
        # Of a text alone each character would be a name.
        if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
            raise CannotLoad(f"handler {name}: {class_name}.{field} is not a tuple of names")
    return kind
