"""How a manifest says where files come from, a model's and those of adapters."""

from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.source import HuggingFace as PodHuggingFace
from batchedmodel_contract.manifest.source import Source as PodSource
from batchedmodel_contract.schema.reading import as_in, section, setting
from batchedmodel_contract.schema.rules import LONGEST_OBJECT_NAME, Text, object_name

_CLAIM_NAME: Final = object_name("a name of a PersistentVolumeClaim")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """One entry of a Secret in the model's namespace."""

    name: str = setting(object_name("a name of a Secret"), required=True)
    """Secret that holds the token, used on Kubernetes; elsewhere HF_TOKEN is read."""
    key: str = setting(
        Text(pattern=r"[\w.-]+", form="a key of a Secret", at_most=LONGEST_OBJECT_NAME),
        default="token",
    )
    """Its entry with the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace:
    """A model repository on a Hugging Face hub."""

    repo: str = as_in(PodHuggingFace, "repo")
    """Repository that holds the model's files."""
    revision: str = as_in(PodHuggingFace, "revision")
    """Branch, tag or commit. A commit makes the service reproducible."""
    token_secret_ref: SecretKey | None = section(SecretKey)
    """Token for a repository that not everybody may see."""
    cache_claim_name: str | None = setting(_CLAIM_NAME)
    """Volume on which fetched models are kept and shared by pods, used on Kubernetes; absent: every
    pod fetches its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A folder on a volume of the cluster, mounted read-only."""

    claim_name: str = setting(_CLAIM_NAME, required=True)
    """Volume with the model's files, on Kubernetes."""
    sub_path: str | None = setting(
        Text(
            pattern=r"[\w-][\w.-]*(/[\w-][\w.-]*)*",
            form="a path within the volume such as models/minilm",
        )
    )
    """Folder in it; absent: the volume itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the model's files come from; exactly one of the fields."""

    path: str | None = as_in(PodSource, "path")
    """Folder with the model's files, or a GGUF file; relative to the manifest, in a cluster within
    the image."""
    volume: Volume | None = section(Volume)
    """Volume of a cluster that holds the files."""
    python_package: str | None = as_in(PodSource, "python_package")
    """Installed package that carries the files: its get_model_path() or else its own folder."""
    hugging_face: HuggingFace | None = section(HuggingFace)
    """Repository to download once and keep in the cache."""

    def for_model_server(self) -> PodSource:
        """As the model server has it: without token and cache, and without a volume."""
        hub = self.hugging_face
        plain = None if hub is None else PodHuggingFace(repo=hub.repo, revision=hub.revision)
        return PodSource(path=self.path, python_package=self.python_package, hugging_face=plain)
