"""Makes the handler that the manifest names: one of ours, or a class of somebody's own."""

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from batchedmodel_contract.manifest.source import is_file_handler
from batchedmodel_model_server.api.handler import PARAMETERS, Handler
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.file_modules import files_beside, forget, import_file

_OURS: Final = {
    "hf": "batchedmodel_model_server.handlers.hf:HuggingFace",
    "simulated": "batchedmodel_model_server.handlers.simulated:Simulated",
}

_METHODS: Final = ("device", "load", "check", "forward", "predicted_seconds", "unload")


def make_handler(
    name: str, parameters: Mapping[str, str], folder: Path | None = None, *, trust: bool = False
) -> Handler:
    """The handler with its parameters, not loaded yet; raises `CannotLoad`.

    `folder` holds the model's files, among them the handler's if its name says so; code there is
    run only with `trust`.
    """
    if is_file_handler(name):
        file_name, _, class_name = name.partition(":")
        module = _module_in(name, folder, file_name, trust=trust)
        try:
            return _made(name, _class_in(name, module, class_name), parameters, trust=trust)
        except CannotLoad:
            forget(module.__name__)
            raise
    return _made(name, _handler_class(name, _OURS.get(name, name)), parameters, trust=trust)


def _made(name: str, kind: type[Handler], parameters: Mapping[str, str], *, trust: bool) -> Handler:
    for given in parameters:
        if given not in kind.parameter_names:
            known = ", ".join(kind.parameter_names) or "none"
            raise CannotLoad(
                f"{PARAMETERS}.{given}: is not known to handler {name}; known: {known}"
            )
    try:
        handler = kind()
    except BaseException as error:
        raise CannotLoad(f"handler {name} cannot be made: {_shown(error)}") from error
    handler.parameters, handler.trusted = parameters, trust
    return handler


def _handler_class(name: str, path: str) -> type[Handler]:
    module_name, colon, class_name = path.partition(":")
    if not colon:
        raise CannotLoad(f"handler {name} is not {', '.join(_OURS)} or package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        raise CannotLoad(
            f"handler {name}: {module_name} cannot be imported: {_shown(error)}"
        ) from error
    return _class_in(name, module, class_name)


def _module_in(name: str, folder: Path | None, file_name: str, *, trust: bool) -> ModuleType:
    """The module that a file among the model's own holds."""
    if not trust:
        raise CannotLoad(
            f"handler {name}: code among the model's files is run only with spec.model.trust: true"
        )
    if folder is None:
        raise CannotLoad(f"handler {name}: there is no spec.model.source to look for {file_name}")
    file = folder / file_name
    if not file.is_file():
        raise CannotLoad(f"handler {name}: {folder} has no {file_name}")
    try:
        return import_file(file)
    except BaseException as error:
        hint = files_beside(file, error)
        raise CannotLoad(f"handler {name}: {file} cannot be run: {_shown(error)}{hint}") from error


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


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
