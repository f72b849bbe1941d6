"""How a manifest names a model: the handler that runs it, and where its files come from.

Part of `spec`, and read by the model server, which makes the handler and brings the files.
"""

from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.schema.reading import section, setting
from batchedmodel_contract.schema.rules import LONGEST_OBJECT_NAME, Text, object_name

_CLAIM_NAME: Final = object_name("a name of a PersistentVolumeClaim")

HANDLER_NAME: Final = Text(
    pattern=r"hf|simulated|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
    form="hf, simulated or a class such as my_package.module:Class",
)
FILE_HANDLER: Final = ".py:"
"""A handler with this in its name is a class of a file, and not of an installed module."""
GGUF_SUFFIX: Final = ".gguf"
"""How the name of a file ends that is a whole model, for which no folder need be named."""


def is_file_handler(handler: str | None) -> bool:
    """Whether a handler names a file among the model's own, such as handler.py:Class."""
    return handler is not None and FILE_HANDLER in handler


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """One entry of a Secret in the model's namespace."""

    name: str = setting(
        object_name("a name of a Secret"),
        "Secret that holds the token, used on Kubernetes; elsewhere HF_TOKEN is read.",
        required=True,
    )
    key: str = setting(
        Text(pattern=r"[\w.-]+", form="a key of a Secret", at_most=LONGEST_OBJECT_NAME),
        "Its entry with the token.",
        default="token",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace:
    """A model repository on a Hugging Face hub."""

    repo: str = setting(
        Text(
            pattern=r"[\w.-]+(/[\w.-]+)?",
            form="a repository name such as sentence-transformers/all-MiniLM-L6-v2",
        ),
        "Repository that holds the model's files.",
        required=True,
    )
    revision: str = setting(
        Text(pattern=r"[\w./-]+", form="a branch, tag or commit"),
        "Branch, tag or commit. A commit makes the service reproducible.",
        default="main",
    )
    token_secret_ref: SecretKey | None = section(
        SecretKey, "Token for a repository that not everybody may see."
    )
    cache_claim_name: str | None = setting(
        _CLAIM_NAME,
        "Volume on which fetched models are kept and shared by pods, used on Kubernetes; absent: "
        "every pod fetches its own.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A folder on a volume of the cluster, mounted read-only."""

    claim_name: str = setting(
        _CLAIM_NAME, "Volume with the model's files, on Kubernetes.", required=True
    )
    sub_path: str | None = setting(
        Text(
            pattern=r"[\w-][\w.-]*(/[\w-][\w.-]*)*",
            form="a path within the volume such as models/minilm",
        ),
        "Folder in it; absent: the volume itself.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the model's files come from; exactly one of the fields."""

    path: str | None = setting(
        Text(at_most=4096),
        "Folder with the model's files, or a GGUF file; relative to the manifest, in a cluster "
        "within the image.",
    )
    volume: Volume | None = section(Volume, "Volume of a cluster that holds the files.")
    python_package: str | None = setting(
        Text(
            pattern=r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*",
            form="an importable name such as my_models.minilm",
        ),
        "Installed package that carries the files: its get_model_path() or else its own folder.",
    )
    hugging_face: HuggingFace | None = section(
        HuggingFace, "Repository to download once and keep in the cache."
    )
