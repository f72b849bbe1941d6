"""The model server's own errors, and what an exception out of a forward pass means.

The one place that knows torch's errors. torch is looked up and not imported: only where it is
loaded can it have raised an exception.
"""

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

Result = TypeVar("Result")

_MESSAGE_CHARACTERS: Final = 500
_TRACE_CHARACTERS: Final = 16_384
_MOST_FRAMES: Final = 5
_OUT_OF_MEMORY: Final = re.compile(
    # The CPU allocator's words; what cuBLAS and cuDNN say when they get no workspace; and the
    # driver's, which refuses memory outside torch's own pool without harm to the device.
    r"can't allocate memory|_STATUS_ALLOC_FAILED|CUDA error: out of memory"
)
_log = logging.getLogger(__name__)


class ModelServerError(Exception):
    """Base of what the server says about itself; `InvalidInput` is what it says about input."""


class CannotLoad(ModelServerError):
    """The model cannot be served; the message is the reason that people will read."""


class NotReady(ModelServerError):
    """The model takes no batches now."""


class Overloaded(ModelServerError):
    """More batches wait than any well-behaved caller would hand over."""


class UnknownModel(ModelServerError):
    """A version of another name was asked for."""


class ForwardFailed(ModelServerError):
    """The handler raised in `forward`, or gave something other than it declared.

    It never has a cause: the frames of the original error hold the tensors of the failed pass, and
    the parts of the batch that run next need their memory.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace
        """Where the handler raised, as text for the log."""


class OutOfMemory(ForwardFailed):
    """The batch does not fit into the memory of the device; a smaller one may."""


class NoSlotFree(ForwardFailed):
    """The adapters of texts that run leave no slot for one of the batch; later there may be one."""


class DeviceLost(ForwardFailed):
    """The device is of no use to this process any more, whatever batch comes next."""


def legible(text: str) -> str:
    """The text as any answer and any log can have it, whatever file, handler or hub it quotes.

    Control characters and halves of surrogate pairs become escapes.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def translated(error: BaseException) -> ForwardFailed:
    """The failure in our words, which keeps nothing of the exception alive."""
    text = words(error)
    trace = _bounded("".join(traceback.format_exception(error)))
    if _is_out_of_memory(error):
        return OutOfMemory(f"the device's memory does not hold this: {text}", trace)
    if _is(error, "AcceleratorError"):
        return DeviceLost(f"the device is lost: {text}", trace)
    return ForwardFailed(f"the model failed: {text}"[:_MESSAGE_CHARACTERS], trace)


def translating(work: Callable[[], Result]) -> Result:
    """The result of work; what it raises is raised as `ForwardFailed` or a kind of that."""
    try:
        return work()
    except ForwardFailed:
        raise
    except BaseException as error:
        failure = translated(error)
    # Out here: raised in there it would keep the error, its frames and their tensors.
    raise failure


@contextmanager
def warming_up(what: str) -> Iterator[None]:
    """Within it a failure becomes `CannotLoad`, unless it is of the memory or of the device."""
    try:
        yield
    except (DeviceLost, OutOfMemory):
        raise
    except ForwardFailed as error:
        _log.error("the warm-up failed: %s", error.trace or error)
        raise CannotLoad(f"{what} failed in warm-up: {error}") from error


def words(error: BaseException, *, named: bool = True) -> str:
    """The text of a handler's exception, cut short. Asking for it may raise another one."""
    kind = type(error).__name__
    try:
        return (f"{kind}: {error}" if named else str(error))[:_MESSAGE_CHARACTERS]
    except BaseException as worse:
        return f"{kind}, whose own text cannot be had ({type(worse).__name__})"


def words_with_place(error: BaseException, module: str) -> str:
    """The same, and where in the author's package the exception went through, innermost last.

    `module`: any of the package.
    """
    package = module.partition(".")[0]
    frames = [
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    text = words(error)
    return f"{text} ({', '.join(frames[-_MOST_FRAMES:])})" if frames else text


def _bounded(trace: str) -> str:
    """The beginning of a long trace, and its end, where the cause stands."""
    if len(trace) <= _TRACE_CHARACTERS:
        return trace
    half = _TRACE_CHARACTERS // 2
    return f"{trace[:half]}\n[...]\n{trace[-half:]}"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or _is(error, "OutOfMemoryError"):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(words(error)) is not None


def _is(error: BaseException, name: str) -> bool:
    kind = getattr(sys.modules.get("torch"), name, None)
    return kind is not None and isinstance(error, kind)
