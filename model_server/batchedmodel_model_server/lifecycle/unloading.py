"""Gives back what a model took: two steps on the compute thread, called by the service.

Between them the caller lets go of the handler. Most models are gone with that. What refers to
itself needs the garbage collector, which for half a second holds up every thread if it looks at
all that the libraries have left behind: so that is done only where nobody is served meanwhile, or
where something of the model is known to be left.
"""

import gc
import logging
import sys
import weakref
from types import FunctionType, ModuleType
from typing import Any, Final

from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.handlers.file_modules import forget

Marks = list[weakref.ref[Any]]
"""Of what should be gone with a handler."""
_SHARED: Final = (type, ModuleType, FunctionType)
_log = logging.getLogger(__name__)


def unload(handler: Handler) -> Marks:
    """Have the handler give back what it holds; whatever it raises ends in the log."""
    marks = [weakref.ref(one) for one in (handler, *vars(handler).values()) if _is_markable(one)]
    try:
        handler.unload()
    except BaseException:
        _log.exception("the handler failed to unload")
    forget(type(handler).__module__)
    return marks


def return_memory(marks: Marks, *, beside: bool) -> None:
    """Let go of what only forgotten objects hold, and of what torch keeps for the next ones.

    `beside` a version that serves everything is looked at only if something marked is left.
    """
    if beside:
        gc.collect()
    if not beside or any(mark() is not None for mark in marks):
        _collect_everything()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _collect_everything() -> None:
    frozen = gc.get_freeze_count() > 0
    # What was frozen once it was loaded, the model among it, is passed over otherwise.
    gc.unfreeze()
    try:
        gc.collect()
    finally:
        if frozen:
            gc.freeze()


def _is_markable(one: object) -> bool:
    # Classes, functions and modules are somebody else's as well.
    return type(one).__weakrefoffset__ != 0 and not isinstance(one, _SHARED)
