"""What an exception out of a forward pass means; the one place that knows torch's.

torch is looked up and not imported: only where it is loaded can it have raised an exception.
"""

import re
import sys
import traceback
from typing import Final

from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, OutOfMemory

_MESSAGE_CHARACTERS: Final = 500
_TRACE_CHARACTERS: Final = 16_384
_MOST_FRAMES: Final = 5
_OUT_OF_MEMORY: Final = re.compile(
    # The CPU allocator's words; what cuBLAS and cuDNN say when they get no workspace; and the
    # driver's, which refuses memory outside torch's own pool without harm to the device.
    r"can't allocate memory|_STATUS_ALLOC_FAILED|CUDA error: out of memory"
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
