"""The model server's own errors."""


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
