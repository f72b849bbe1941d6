"""Zero code: a transformers checkpoint served by what its own files say.

The architecture in its config decides the task: embeddings, classification or ranking of texts,
classification of tokens, classification or embeddings of images.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from batchedmodel_model_server.batch import Batch
from batchedmodel_model_server.checkpoint import TaskName, read_config, task_of
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handler import Handler
from batchedmodel_model_server.handlers.hf_images import image_classifier, image_embedding
from batchedmodel_model_server.handlers.hf_texts import (
    text_classifier,
    text_embedding,
    token_classifier,
)
from batchedmodel_model_server.handlers.tasks import Place, Task
from batchedmodel_model_server.handlers.transformers_models import chosen_dtype, precision_of


class HuggingFace(Handler):
    """Parameters: `dtype` (auto, float32, bfloat16, float16); `pixels` (float32, uint8)."""

    libraries: ClassVar[tuple[str, ...]] = (
        "transformers.modeling_utils",
        "transformers.models.auto",
    )
    parameter_names: ClassVar[tuple[str, ...]] = ("dtype", "pixels")

    def load(self, path: Path | None, device: str) -> None:
        """Read the checkpoint and declare the tensors by it; raises `CannotLoad`."""
        if path is None:
            raise CannotLoad("handler hf needs a source")
        dtype = chosen_dtype(self.parameters.get("dtype", "auto"), device)
        self.precision = precision_of(dtype)
        self._task = task = self._made(path, Place(device=device, dtype=dtype))
        self.inputs, self.outputs, self.packs = task.inputs, task.outputs, task.packs
        self.text, self.tokenizer = task.text, task.tokenizer
        self.embedding, self.ranking = task.embedding, task.ranking
        self.classification = task.classification

    def _made(self, path: Path, place: Place) -> Task:
        name = task_of(path)
        if name in (TaskName.IMAGE_CLASSIFICATION, TaskName.IMAGE_EMBEDDING):
            pixels = self.parameters.get("pixels", "float32")
            make = image_classifier if name is TaskName.IMAGE_CLASSIFICATION else image_embedding
            return make(path, read_config(path), place, pixels)
        if "pixels" in self.parameters:
            raise CannotLoad("spec.model.parameters.pixels: the model takes text, not images")
        if name is TaskName.TEXT_EMBEDDING:
            return text_embedding(path, place)
        if name is TaskName.TOKEN_CLASSIFICATION:
            return token_classifier(path, place)
        return text_classifier(path, place)

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Whatever the task gives."""
        return self._task.run(batch)

    def unload(self) -> None:
        """Drop the weights."""
        del self._task
