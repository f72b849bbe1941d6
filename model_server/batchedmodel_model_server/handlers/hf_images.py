"""Images: classification and embeddings, as pixels of the size that the model was made for.

Whoever sends images decodes and cuts them: decoders have a history of holes, and a resized image
is smaller on the wire. Size, scale, mean and deviation are those of the checkpoint's processor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.handler import PARAMETERS, Spec
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.checkpoint import IMAGE_MODELS, LOGITS, classes_of
from batchedmodel_model_server.handlers.transformers_models import Place, Task, load_model
from batchedmodel_model_server.sources.untrusted_files import read_json

PIXELS: Final = "pixel_values"
EMBEDDING: Final = "embedding"
_PROCESSOR: Final = "preprocessor_config.json"
_FORMS: Final = ("float32", "uint8")
_POOLER: Final = "pooler."
_CLASS_TOKEN: Final = "cls_token"
_TOWER: Final = "CLIPVisionModelWithProjection"
"""The class that is the half for images of models of images and texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Processor:
    """What makes pixels of an image of the right size."""

    height: int
    width: int
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def image_classifier(path: Path, config: Mapping[str, Any], place: Place, pixels: str) -> Task:
    """A raw score for each label; raises `CannotLoad` or `InvalidInput`."""
    processor = _processor(path, config)
    model, _ = load_model(config["architectures"][0], path, place)
    classes, read = classes_of(config), _reader(processor, model, place, pixels)
    return Task(
        inputs={PIXELS: _spec(processor, pixels)},
        outputs={LOGITS: Spec("FP32", (len(classes.labels),))},
        run=lambda batch: {LOGITS: model(pixel_values=read(batch)).logits},
        classification=classes,
    )


def image_embedding(path: Path, config: Mapping[str, Any], place: Place, pixels: str) -> Task:
    """One vector of length 1: CLIP's projection, or else what the model itself pools.

    A checkpoint without the weights of its pooler is served by its class token, if it has one.
    Raises `CannotLoad` for a model that gives no such vector.
    """
    processor = _processor(path, config)
    kind = _TOWER if config["architectures"][0] in IMAGE_MODELS else "AutoModel"
    model, lacks = load_model(kind, path, place, spare=_POOLER)
    if lacks and not any(name.endswith(_CLASS_TOKEN) for name, _ in model.named_parameters()):
        raise CannotLoad(
            f"{path} lacks the weights of its pooler, and {type(model).__name__} has no class token"
        )
    read = _reader(processor, model, place, pixels)

    def vectors(given: Any) -> Any:
        if lacks:
            return given.last_hidden_state[:, 0]
        found = getattr(given, "image_embeds", None)
        return getattr(given, "pooler_output", None) if found is None else found

    def run(batch: Batch) -> Mapping[str, Any]:
        import torch

        found = vectors(model(pixel_values=read(batch)))
        return {EMBEDDING: torch.nn.functional.normalize(found.float(), dim=-1)}

    return Task(
        inputs={PIXELS: _spec(processor, pixels)},
        outputs={EMBEDDING: Spec("FP32", (_vector_size(model, vectors, processor),))},
        run=run,
    )


def _vector_size(model: Any, vectors: Callable[[Any], Any], processor: _Processor) -> int:
    """How many numbers the model gives for an image, as one pass shows; raises `CannotLoad`."""
    import torch

    shape = (1, len(processor.mean), processor.height, processor.width)
    with torch.inference_mode():
        found = vectors(model(pixel_values=torch.zeros(shape).to(model.device, model.dtype)))
    if found is None or found.dim() != 2:
        raise CannotLoad(
            f"{type(model).__name__} gives no vector for an image (pooler_output), and none of its "
            "patches stands for the whole"
        )
    return int(found.shape[-1])


def _spec(processor: _Processor, pixels: str) -> Spec:
    if pixels not in _FORMS:
        rule = f"is not one of {', '.join(_FORMS)}"
        raise InvalidInput(f"{PARAMETERS}.pixels", rule, pixels)
    channels = len(processor.mean)
    if pixels == "uint8":
        return Spec("UINT8", (processor.height, processor.width, channels))
    return Spec("FP32", (channels, processor.height, processor.width))


def _reader(processor: _Processor, model: Any, place: Place, pixels: str) -> Callable[[Batch], Any]:
    """Pixels as the model takes them: as they came, or made of bytes as its processor would."""
    import torch

    if pixels != "uint8":
        return lambda batch: batch[PIXELS].to(model.dtype)
    mean = torch.tensor(processor.mean, device=place.device)[:, None, None]
    deviation = torch.tensor(processor.deviation, device=place.device)[:, None, None]

    def read(batch: Batch) -> Any:
        scaled = batch[PIXELS].permute(0, 3, 1, 2) * processor.scale
        return ((scaled - mean) / deviation).to(model.dtype)

    return read


def _processor(path: Path, config: Mapping[str, Any]) -> _Processor:
    said = read_json(path / _PROCESSOR, {})
    vision = config.get("vision_config", config)
    size = said.get("crop_size") if said.get("do_center_crop") else said.get("size")
    height, width = _size(size or vision.get("image_size"), path)
    channels = int(vision.get("num_channels", 3))
    normalizes = said.get("do_normalize", True)
    # A processor that does not say so scales by 1/255 and normalises to -1 .. 1, as ViT's does.
    mean = said.get("image_mean", [0.5] * channels) if normalizes else [0.0] * channels
    deviation = said.get("image_std", [0.5] * channels) if normalizes else [1.0] * channels
    scale = float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0
    if len(mean) != channels or len(deviation) != channels:
        raise CannotLoad(f"{path / _PROCESSOR}: image_mean and image_std are not {channels} long")
    return _Processor(
        height=height, width=width, scale=scale, mean=tuple(mean), deviation=tuple(deviation)
    )


def _size(said: object, path: Path) -> tuple[int, int]:
    found = said if isinstance(said, list) else (said, said)
    if isinstance(said, dict):
        edge = said.get("shortest_edge")
        found = (said.get("height") or edge, said.get("width") or edge)
    match found:
        case (int(height), int(width)) if height >= 1 and width >= 1:
            return height, width
    raise CannotLoad(f"{path}: neither {_PROCESSOR} nor config.json says how large images are")
