"""Makes the handler that the manifest names: one of ours, or a class of somebody's own."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Final

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handler import PARAMETERS, Handler

_OURS: Final = {
    "hf": "batchedmodel_model_server.handlers.hf:HuggingFace",
    "simulated": "batchedmodel_model_server.handlers.simulated:Simulated",
}


def make_handler(name: str, parameters: Mapping[str, str]) -> Handler:
    """The handler with its parameters, not loaded yet; raises `CannotLoad`."""
    kind = _handler_class(name, _OURS.get(name, name))
    for given in parameters:
        if given not in kind.parameter_names:
            known = ", ".join(kind.parameter_names) or "none"
            raise CannotLoad(
                f"{PARAMETERS}.{given}: is not known to handler {name}; known: {known}"
            )
    try:
        handler = kind()
    except Exception as error:
        raise CannotLoad(f"handler {name} cannot be made: {_shown(error)}") from error
    handler.parameters = parameters
    return handler


def _handler_class(name: str, path: str) -> type[Handler]:
    module_name, colon, class_name = path.partition(":")
    if not colon:
        raise CannotLoad(f"handler {name} is not {', '.join(_OURS)} or package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise CannotLoad(
            f"handler {name}: {module_name} cannot be imported: {_shown(error)}"
        ) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        raise CannotLoad(f"handler {name}: {module_name} has no {class_name}")
    if not inspect.isclass(kind) or not issubclass(kind, Handler):
        base = f"{Handler.__module__}.{Handler.__name__}"
        raise CannotLoad(f"handler {name}: {class_name} is not a subclass of {base}")
    if kind.forward is Handler.forward:
        raise CannotLoad(f"handler {name}: {class_name} has no forward method")
    return kind


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
