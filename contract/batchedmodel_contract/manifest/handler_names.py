"""How a manifest names the handler that runs a model: ours, a class of a module, or of a file.

Used by the manifest's rules and by the model server that makes the handler. Pure.
"""

from typing import Final

from batchedmodel_contract.schema.rules import Text

HANDLER_NAME: Final = Text(
    pattern=r"hf|simulated|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
    form="hf, simulated or a class such as my_package.module:Class",
)
FILE_HANDLER: Final = ".py:"
"""By this in its name a handler is a class of a file, and not of an installed module."""


def is_file_handler(handler: str | None) -> bool:
    """Whether a handler names a file among the model's own, such as handler.py:Class."""
    return handler is not None and FILE_HANDLER in handler
