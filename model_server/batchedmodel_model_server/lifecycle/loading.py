"""Makes the manifest's handler, has it load what the source holds, and gives back what it took.

Called by the service on threads that may block; knows nothing of versions. How long a start takes
is told by its phases.
"""

import gc
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.lora import AdapterSettings
from batchedmodel_contract.manifest.source import Source, is_file_handler
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.api.adapters import AdapterBounds
from batchedmodel_model_server.api.generator import CacheSettings
from batchedmodel_model_server.api.handler import Handler
from batchedmodel_model_server.api.weights import while_files
from batchedmodel_model_server.batching.declaration import declaration_of
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, translated, words_with_place
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.handlers.registry import forget, make_handler
from batchedmodel_model_server.handlers.tokenizer_trial import try_tokenizer
from batchedmodel_model_server.machine import bound_operators, require_accelerator
from batchedmodel_model_server.sources.folder import Content, content_of

PROCESS: Final = "process"
"""The interpreter, the server's own modules and its socket: all before the model's turn."""
IMPORTS: Final = "imports"
FETCH: Final = "fetch"
LOAD: Final = "load"
SELF_TESTS: Final = "self-tests"
WARM_UP: Final = "warm-up"

Marks = list[weakref.ref[Any]]
"""Of what should be gone with a handler."""
_STAT: Final = Path("/proc/self/stat")
_STARTED: Final = 19  # of the fields behind the name: clock ticks from the boot to the start
_SHARED: Final = (type, ModuleType, FunctionType)
_log = logging.getLogger(__name__)


class StartUp:
    """Seconds of each phase of a start so far, in the order in which they came."""

    def __init__(
        self, process_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {PROCESS: process_seconds}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs within it; a phase that comes again is added up."""
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - began

    @property
    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Every phase and what it took."""
        return tuple(self._seconds.items())

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds)
        return f"{sum(self._seconds.values()):.2f} s: {phases}"


def process_age(stat: Path = _STAT) -> float:
    """Seconds since this process was started, to a hundredth; 0 where the kernel does not say."""
    try:
        # The name comes in parentheses and may hold anything, so count from behind it.
        fields = stat.read_text().rpartition(")")[2].split()
        ticks = int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0.0
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


def load(
    settings: ModelServerSettings,
    source: Source | None,
    start: StartUp | None = None,
    adapters: AdapterSettings | None = None,
) -> LoadedModel:
    """Make and load the handler; raises `CannotLoad` or `DeviceLost`, whatever happens."""
    start = start or StartUp()
    undo = ExitStack()
    handler: Handler | None = None

    def fetched() -> Content:
        with start.phase(FETCH):
            return content_of(source, Path(settings.cache_folder), trust=settings.trust)

    try:
        content = fetched() if is_file_handler(settings.handler) else None
        with start.phase(IMPORTS):
            handler = make_handler(
                settings.handler,
                dict(settings.parameters),
                None if content is None else content.folder,
                trust=settings.trust,
            )
            undo.callback(forget, type(handler).__module__)
            device = handler.device()
            if not isinstance(device, str):
                raise CannotLoad(
                    f"handler {settings.handler}: device gave {device!r}, not a name such as 'cuda'"
                )
            if type(handler).device is Handler.device:
                require_accelerator(settings.accelerator, device)
        # After the handler where that is elsewhere: its mistakes need not wait for a download.
        content = content or fetched()
        with start.phase(IMPORTS):
            handler.import_libraries()
            bound_operators()
        handler.cache = CacheSettings(
            memory_bytes=settings.kv_cache_bytes or None,
            fraction=settings.kv_cache_fraction or None,
            max_context_tokens=settings.max_context_tokens or None,
        )
        if adapters is not None:
            handler.adapters = AdapterBounds(slots=adapters.slots, max_rank=adapters.max_rank)
        with start.phase(LOAD), while_files(stay=content.stays):
            handler.load(content.folder, device)
        if adapters is not None and handler.bank is None:
            raise CannotLoad(f"handler {settings.handler}: this model takes no adapters")
        loaded = LoadedModel(
            handler=handler,
            declaration=declaration_of(handler),
            device=device,
            idempotent=settings.idempotent and handler.idempotent,
            content=content,
        )
        if handler.text is not None and handler.tokenizer is not None:
            with start.phase(LOAD):
                try_tokenizer(handler.tokenizer, handler.text.max_tokens)
        # From here on `unload` lets go of the handler's modules.
        undo.pop_all()
        return loaded
    except (CannotLoad, DeviceLost):
        raise
    except InvalidInput as error:
        raise CannotLoad(str(error)) from error
    except BaseException as error:
        failure = translated(error)
        if isinstance(failure, DeviceLost):
            raise failure from error
        # A handler is anybody's code: its failure is the model's state, not the process's end.
        where = "" if handler is None else type(handler).__module__
        reason = words_with_place(error, where)
        raise CannotLoad(f"handler {settings.handler} failed to load: {reason}") from error
    finally:
        undo.close()


def unload(handler: Handler) -> Marks:
    """Have the handler give back what it holds; whatever it raises ends in the log.

    The caller then lets go of the handler, and calls `return_memory` with the marks.
    """
    # Others may hold classes, functions and modules as well.
    own = [one for one in (handler, *vars(handler).values()) if not isinstance(one, _SHARED)]
    marks = [weakref.ref(one) for one in own if type(one).__weakrefoffset__ != 0]
    try:
        handler.unload()
    except BaseException:
        _log.exception("the handler failed to unload")
    forget(type(handler).__module__)
    return marks


def return_memory(marks: Marks, *, beside: bool) -> None:
    """Have the collector find what only forgotten objects hold, and empty torch's cache.

    Looking at all that libraries have left behind holds up every thread for half a second. So
    `beside` a version that serves it is done only if something marked is left: most models are
    gone with their handler, unless they refer to themselves.
    """
    if beside:
        gc.collect()
    if not beside or any(mark() is not None for mark in marks):
        frozen = gc.get_freeze_count() > 0
        # What was frozen once it was loaded, the model among it, is passed over otherwise.
        gc.unfreeze()
        try:
            gc.collect()
        finally:
            if frozen:
                gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
