"""Zero code: a transformers checkpoint served by what its own files say.

The architecture in its config decides the task: generation, embeddings, classification or ranking
of texts, classification of tokens, classification or embeddings of images.
"""

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.handler import PARAMETERS, Handler
from batchedmodel_model_server.errors import CannotLoad, ForwardFailed
from batchedmodel_model_server.handlers.checkpoint import (
    IMAGE_MODELS,
    TaskName,
    architecture_of,
    folder_of,
    read_config,
    task_of,
)
from batchedmodel_model_server.handlers.gguf_models import checkpoint_of
from batchedmodel_model_server.handlers.hf_generation import text_generation
from batchedmodel_model_server.handlers.hf_images import image_classifier, image_embedding
from batchedmodel_model_server.handlers.hf_texts import text_classifier, text_embedding
from batchedmodel_model_server.handlers.transformers_models import (
    PRECISIONS,
    Place,
    Task,
    check_input,
    chosen_dtype,
    has_bfloat16,
    import_transformers,
)
from batchedmodel_model_server.lora.layers import of_rows

_SHORTEST: Final = "shortestEmbedding"
_BY_CONFIG: Final = "generationConfig"
_log = logging.getLogger(__name__)


class HuggingFace(Handler):
    """Parameters: `dtype` (auto, float32, bfloat16, float16), of images `pixels` (float32, uint8).

    `shortestEmbedding`: to how few numbers callers may have embeddings of texts cut, where the
    checkpoint does not say so itself. `generationConfig` (true, false): whether texts are generated
    by its `generation_config.json` where callers say nothing.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("dtype", "pixels", _SHORTEST, _BY_CONFIG)

    def import_libraries(self) -> None:
        """transformers, as far as this handler uses it."""
        import_transformers()

    def load(self, path: Path | None, device: str) -> None:
        """Read the checkpoint and declare the tensors by it; raises `CannotLoad`."""
        if path is None:
            raise CannotLoad("handler hf needs a source")
        wanted = self.parameters.get("dtype", "auto")
        dtype = chosen_dtype(wanted, has_bfloat16=has_bfloat16(device))
        _log.info("computing in %s, as dtype is %s", dtype, wanted)
        self.precision = PRECISIONS[dtype]
        with checkpoint_of(path) as folder:
            self._task = self._made(folder, Place(device=device, dtype=dtype))
        for declared in fields(self._task):
            if declared.name != "run":
                setattr(self, declared.name, getattr(self._task, declared.name))

    def _made(self, path: Path, place: Place) -> Task:
        name, shortest = task_of(path), self._shortest()
        embeds = name in (TaskName.TEXT_EMBEDDING, TaskName.TEXT_GENERATION)
        if shortest is not None and not embeds:
            raise CannotLoad(f"{PARAMETERS}.{_SHORTEST}: the model gives no embeddings of texts")
        of_images = name in (TaskName.IMAGE_CLASSIFICATION, TaskName.IMAGE_EMBEDDING)
        architecture = architecture_of(read_config(folder_of(path)))
        # Classes that generate inherit what a larger model takes; of CLIP one half is loaded.
        if name is not TaskName.TEXT_GENERATION and architecture not in IMAGE_MODELS:
            check_input(architecture, "image" if of_images else "text")
        if of_images:
            pixels = self.parameters.get("pixels", "float32")
            make = image_classifier if name is TaskName.IMAGE_CLASSIFICATION else image_embedding
            if self.adapters is not None:
                raise CannotLoad("spec.adapters: adapters of image models are not supported")
            return make(path, read_config(path), place, pixels)
        if "pixels" in self.parameters:
            raise CannotLoad(f"{PARAMETERS}.pixels: the model takes text, not images")
        if name is TaskName.TEXT_GENERATION:
            said = self.parameters.get(_BY_CONFIG, "true")
            if said not in ("true", "false"):
                raise InvalidInput(f"{PARAMETERS}.{_BY_CONFIG}", "is not true or false", said)
            by_config = said == "true"
            return text_generation(path, place, self.cache, shortest, self.adapters, by_config)
        if _BY_CONFIG in self.parameters:
            raise CannotLoad(f"{PARAMETERS}.{_BY_CONFIG}: the model generates no text")
        if name is TaskName.TEXT_EMBEDDING:
            return text_embedding(path, place, shortest, self.adapters)
        of_tokens = name is TaskName.TOKEN_CLASSIFICATION
        return text_classifier(path, place, self.adapters, of_tokens=of_tokens)

    def _shortest(self) -> int | None:
        given = self.parameters.get(_SHORTEST)
        if given is None:
            return None
        # int() itself would refuse thousands of digits, in words of its own.
        if not (given.isascii() and given.isdigit() and len(given) < 10 and int(given)):
            raise InvalidInput(f"{PARAMETERS}.{_SHORTEST}", "is not a number above 0", given)
        return int(given)

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Whatever the task gives."""
        bank, has_adapters = self._task.bank, batch.adapters is not None
        if bank is None and has_adapters:
            raise ForwardFailed("the model takes no adapters")
        if bank is None or (bank.has_looked and not has_adapters):
            return self._task.run(batch)
        rows = np.zeros(batch.rows, np.int64)
        if batch.adapters is not None:
            rows[:] = batch.adapters
        sizes = of_rows(rows, batch.lengths, packed=batch.packed() is not None)
        with bank.using(sizes, rows) if has_adapters else bank.looking(sizes):
            return self._task.run(batch)

    def unload(self) -> None:
        """Drop the weights."""
        del self._task
        self.bank = None
