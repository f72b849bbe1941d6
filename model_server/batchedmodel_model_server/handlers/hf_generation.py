"""Text: what a decoder of transformers writes, and the embeddings of the model below its head.

Serves whatever keeps nothing but keys and values of each token, by full or sliding attention. That
is found out by trying (`generation_trial`), not by the model's name.
"""

import inspect
import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchedmodel_model_server.api.adapters import AdapterBounds
from batchedmodel_model_server.api.generator import CacheSettings, Generator
from batchedmodel_model_server.errors import CannotLoad, words
from batchedmodel_model_server.execution.memory import free_bytes
from batchedmodel_model_server.generation.paged_attention import (
    PagedCache,
    PagedStep,
    StepAttention,
    block_bytes,
)
from batchedmodel_model_server.generation.step_layout import StepLayout
from batchedmodel_model_server.generation.torch_runner import TorchRunner
from batchedmodel_model_server.handlers import packed_attention
from batchedmodel_model_server.handlers.checkpoint import read_text_files
from batchedmodel_model_server.handlers.generation_files import (
    INSTEAD,
    check_layers,
    read_generation_files,
    switches_of,
    windows_of,
)
from batchedmodel_model_server.handlers.generation_trial import (
    TOLERANCES,
    Discovery,
    Layer,
    Trial,
    in_float32,
    longest,
    tried,
)
from batchedmodel_model_server.handlers.hf_texts import embedding_of, load_with_head
from batchedmodel_model_server.handlers.transformers_models import (
    Place,
    Task,
    bank_of,
)
from batchedmodel_model_server.lora.layers import AdapterBank, of_step

_CANNOT: Final = "cannot generate over a cache"
_PAGE: Final = 32
_GPU_PAGE: Final = 256
_ARGUMENTS: Final = ("input_ids", "position_ids", "use_cache", "logits_to_keep")
_MOST_BYTES: Final = 4 << 30
_MOST_SHARE: Final = 4
"""A cache on a CPU takes at most one part of so many of what is free, unless more is asked for."""
_SEQUENCES: Final = 256
"""For so many of the longest texts it has room at most."""
_GPU_SHARE: Final = 0.9
_SMALL: Final = 1 << 20
"""Numbers of a matrix of weights that the cache of a processor's core holds."""
_log = logging.getLogger(__name__)


def text_generation(
    path: Path,
    place: Place,
    cache: CacheSettings,
    shortest: int | None = None,
    adapters: AdapterBounds | None = None,
    by_config: bool = True,
) -> Task:
    """A generator, and embeddings by the same weights; raises `CannotLoad`.

    `by_config`: whether `generation_config.json` says how tokens are chosen.
    """
    files = read_text_files(path)
    said = read_generation_files(files.folder, files.config, sampling=by_config)
    if said.sampling_defaults:
        values = ", ".join(f"{name} {value:g}" for name, value in said.sampling_defaults.items())
        _log.info("where callers say nothing, generation_config.json holds: %s", values)
    model = load_with_head(files, place)
    writer = _Writer(model, place)
    context = writer.tried(_context(model.config, cache.max_context_tokens), cache)
    bank = bank_of(model, adapters, None)
    runner, context = writer.runner_for(context, cache, bank)
    generator = Generator(
        runner=runner,
        vocabulary=writer.vocabulary,
        max_context_tokens=context,
        stop_ids=tuple(one for one in said.stop_ids if one < writer.vocabulary),
        tokenizer=files.tokenizer,
        chat_template=said.chat_template,
        special_tokens=said.special_tokens,
        sampling_defaults=said.sampling_defaults,
    )
    return embedding_of(model.base_model, files, place, shortest, generator=generator, bank=bank)


def _context(config: Any, wanted: int | None) -> int:
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if wanted is None:
        if positions is None:
            raise CannotLoad("config.json does not say how long texts may be: set maxContextTokens")
        return positions
    if positions is not None and wanted > positions:
        raise CannotLoad(f"maxContextTokens {wanted}: the model has {positions} positions")
    return wanted


class _Writer:
    """A loaded model, and how it computes steps."""

    def __init__(self, model: Any, place: Place) -> None:
        arguments = inspect.signature(model.forward).parameters
        lacking = [name for name in _ARGUMENTS if name not in arguments]
        if lacking:
            raise CannotLoad(
                f"{type(model).__name__} {_CANNOT}: it takes no {', '.join(lacking)}, as it may "
                f"keep a state or count positions by a bias{INSTEAD}"
            )
        check_layers(model.config.to_dict())
        self._model: Final = model
        self._place: Final = place
        self._on_gpu: Final = place.device.startswith("cuda")
        self._page: Final = _GPU_PAGE if self._on_gpu else _PAGE
        self._layers: Final = self._discovered()
        self._shapes: Final = [layer.shape for layer in self._layers]
        self._dtype: Final = self._layers[0].dtype
        if not self._on_gpu:
            _lay_by_columns(model)

    def tried(self, context: int, cache: CacheSettings) -> int:
        """How long texts may be, as far as the model's own pass agrees; raises `CannotLoad`."""
        import torch

        config = self._model.config.to_dict()
        windows = windows_of(config)
        windows |= {layer.terms.window for layer in self._layers if layer.terms.window is not None}
        page = self._page
        blocks = sum(-(-tokens // page) for tokens in (longest(windows, context), page)) + 4
        asked = cache.max_context_tokens is not None
        # Kernels of GPUs for pages take halves only.
        dtype = self._place.dtype if self._on_gpu else "float32"
        with nullcontext() if self._on_gpu else in_float32():
            trial = Trial(
                runner=self._runner(blocks, dtype=getattr(torch, dtype)),
                plain=self._scores,
                device=self._place.device,
                vocabulary=self.vocabulary,
                tolerance=TOLERANCES[dtype],
            )
            found, why = tried(trial, windows, switches_of(config), context, asked=asked)
        if found < context:
            if asked:
                raise CannotLoad(f"maxContextTokens {context}: at most {found} are served: {why}")
            _log.warning("a prompt with its text may have %d tokens: %s", found, why)
        return found

    def runner_for(
        self, context: int, cache: CacheSettings, bank: AdapterBank | None
    ) -> tuple[TorchRunner, int]:
        """With a cache of its own, and how long texts may be; raises `CannotLoad`."""
        page, size = self._page, block_bytes(self._shapes, self._page, self._dtype.itemsize)
        free = free_bytes(self._place.device)
        blocks, context = blocks_for(context, cache, page, size, free, on_gpu=self._on_gpu)
        if not self._on_gpu:
            multiply_lone_rows(self._model)
        told = "the cache has %d blocks of %d tokens, %d bytes each; texts have up to %d tokens"
        _log.info(told, blocks, page, size, context)
        return self._runner(blocks, bank), context

    def _runner(
        self, blocks: int, bank: AdapterBank | None = None, dtype: Any = None
    ) -> TorchRunner:
        cache = PagedCache(
            self._shapes,
            blocks=blocks,
            block_tokens=self._page,
            dtype=dtype or self._dtype,
            device=self._place.device,
            heads_first=not self._on_gpu,
        )
        attention = _on_gpu if self._on_gpu else PagedStep
        return TorchRunner(
            self._scores,
            cache,
            attention,
            lambda step: packed_attention.stepping(self._model, step),
            None if bank is None else lambda *step: bank.using(of_step(*step)),
        )

    def _scores(self, ids: Any, positions: Any, wanted: Any) -> Any:
        return self._model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=wanted
        ).logits

    def _discovered(self) -> list[Layer]:
        """What each layer asks of its attention; raises `CannotLoad`."""
        import torch

        found = Discovery()
        ids = torch.zeros(1, 4, dtype=torch.long, device=self._place.device)
        positions = torch.arange(4, device=self._place.device)[None]
        try:
            with torch.inference_mode(), packed_attention.stepping(self._model, found):
                logits = self._scores(ids, positions, positions[0, -1:])
        except Exception as error:
            reason = words(error, named=not isinstance(error, NotImplementedError))
            raise CannotLoad(
                f"{type(self._model).__name__} {_CANNOT}: {reason}{INSTEAD}"
            ) from error
        if not found.layers:
            reason = "none of its layers attends through transformers' registry"
            raise CannotLoad(f"{type(self._model).__name__} {_CANNOT}: {reason}{INSTEAD}")
        self.vocabulary = int(self._model.get_input_embeddings().weight.shape[0])
        if logits.shape[-1] > self.vocabulary:
            raise CannotLoad(
                f"the model scores {logits.shape[-1]} tokens and takes {self.vocabulary}"
            )
        return found.layers


def _lay_by_columns(model: Any) -> None:
    """Store small matrices of weights by columns, in memory of their own.

    A CPU's library multiplies them so with 4 to 64 rows, as many as a step has, in half to three
    quarters of the time. With larger matrices, one row and halves it gains nothing or loses.
    """
    import torch

    shared = model.get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight is not shared:
            weight = module.weight.data
            if weight.dtype == torch.float32 and weight.numel() <= _SMALL:
                module.weight.data = weight.t().contiguous().t()


def multiply_lone_rows(model: Any) -> None:
    """Have linear layers in bfloat16 multiply one row as a vector.

    A CPU's library takes half to three quarters of the time that a matrix of one row takes, and a
    lone text spends two thirds of its steps in these layers. In float32 both take as long.
    """
    import torch
    from torch.nn.functional import linear

    def forward(layer: Any, given: Any) -> Any:
        if given.numel() != layer.in_features:
            return linear(given, layer.weight, layer.bias)
        row = given.reshape(-1)
        if layer.bias is None:
            output = torch.mv(layer.weight, row)
        else:
            output = torch.addmv(layer.bias, layer.weight, row)
        return output.view(*given.shape[:-1], layer.out_features)

    for module in model.modules():
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.bfloat16:
            module.forward = partial(forward, module)


def _on_gpu(cache: PagedCache, layout: StepLayout) -> StepAttention:
    from torch.nn.attention.varlen import varlen_attn

    from batchedmodel_model_server.generation.varlen_attention import VarlenStep

    return VarlenStep(cache, layout, varlen_attn)


def blocks_for(
    context: int, cache: CacheSettings, page: int, block_bytes: int, free: int, *, on_gpu: bool
) -> tuple[int, int]:
    """Blocks of the cache, and how long texts may be with them; raises `CannotLoad`.

    `context`: how long they may be otherwise. `page`: tokens of a block. `free`: bytes of the
    device, with the model in it. Where nothing is asked for, texts become shorter rather than that
    the model is refused.
    """
    needed = -(-context // page)
    if cache.memory_bytes is not None:
        size = cache.memory_bytes
    elif cache.fraction is not None or on_gpu:
        size = int((_GPU_SHARE if cache.fraction is None else cache.fraction) * free)
    else:
        size = min(_MOST_BYTES, free // _MOST_SHARE, _SEQUENCES * needed * block_bytes)
    blocks = size // block_bytes
    if blocks >= needed:
        return blocks, context
    asked = cache.memory_bytes, cache.fraction, cache.max_context_tokens
    if blocks < 1 or any(one is not None for one in asked):
        raise CannotLoad(
            f"the cache of {size} bytes is too small: one text of {context} tokens takes "
            f"{needed * block_bytes} bytes; give it as much by spec.generation.kvCache, or set a "
            "smaller maxContextTokens"
        )
    shorter = blocks * page
    _log.warning(
        "texts have up to %d tokens instead of %d, as the cache has no more blocks; "
        "spec.generation.kvCache can give it more",
        shorter,
        context,
    )
    return blocks, shorter
