"""What the model server knows of a model: the handler that runs it, and where its files lie."""

from dataclasses import dataclass, fields
from typing import Any, Final

from batchedmodel_contract.schema.reading import section, setting
from batchedmodel_contract.schema.rules import Text

FILE_HANDLER: Final = ".py:"
"""A handler with this in its name is a class of a file, and not of an installed module."""
GGUF_SUFFIX: Final = ".gguf"
"""How the name of a file ends that is a whole model, for which no folder need be named."""


def is_file_handler(handler: str | None) -> bool:
    """Whether a handler names a file among the model's own, such as handler.py:Class."""
    return handler is not None and FILE_HANDLER in handler


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace:
    """A model repository on a Hugging Face hub."""

    repo: str = setting(
        Text(
            pattern=r"[\w.-]+(/[\w.-]+)?",
            form="a repository name such as sentence-transformers/all-MiniLM-L6-v2",
        ),
        required=True,
    )
    revision: str = setting(
        Text(pattern=r"[\w./-]+", form="a branch, tag or commit"), default="main"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where files come from; exactly one of the fields. A mounted volume is a folder here."""

    path: str | None = setting(Text(at_most=4096))
    python_package: str | None = setting(
        Text(
            pattern=r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*",
            form="an importable name such as my_models.minilm",
        )
    )
    """It carries the files: its get_model_path() or else its own folder."""
    hugging_face: HuggingFace | None = section(HuggingFace)


def has_one_place(source: Any) -> bool:
    """Whether exactly one field of a source, or of a manifest's source, is given."""
    return sum(getattr(source, field.name) is not None for field in fields(source)) == 1
