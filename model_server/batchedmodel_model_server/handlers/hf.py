"""Zero-code embeddings: a transformers checkpoint served by its own files.

All contact with transformers is here. Token ids in, one vector out, equal to what
sentence-transformers gives for the same ids.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from batchedmodel_contract.description import TextInput
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_model_server.checkpoint import EmbeddingCheckpoint, Pooling, read_checkpoint
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handler import PARAMETERS, Batch, Handler, Spec

TOKENS: Final = "input_ids"
EMBEDDING: Final = "embedding"
_DTYPES: Final = ("float32", "bfloat16")
_UNUSED_WEIGHTS: Final = "pooler."  # a head that some checkpoints lack and no embedding needs


class HuggingFaceEmbedding(Handler):
    """`input_ids` of one text to its `embedding`. Parameter `dtype`: float32 or bfloat16."""

    parameter_names: ClassVar[tuple[str, ...]] = ("dtype",)

    def load(self, path: Path | None, device: str) -> None:
        """Read the checkpoint and declare the tensors by it; raises `CannotLoad`."""
        if path is None:
            raise CannotLoad("handler hf needs a source")
        dtype = self.parameters.get("dtype", _DTYPES[0])
        if dtype not in _DTYPES:
            rule = f"is not one of {', '.join(_DTYPES)}"
            raise InvalidInput(f"{PARAMETERS}.dtype", rule, dtype)
        checkpoint = read_checkpoint(path)
        self._model = _load_model(checkpoint, dtype).to(device)
        self._pool = _POOLING[checkpoint.pooling]
        self._normalize = checkpoint.normalize
        longest = _longest(checkpoint, self._model)
        self.inputs = {
            TOKENS: Spec(
                "INT64", ("L",), pad=checkpoint.pad, max=longest, vocab=checkpoint.vocabulary
            )
        }
        self.outputs = {EMBEDDING: Spec("FP32", (int(self._model.config.hidden_size),))}
        self.embedding = EMBEDDING
        limit = checkpoint.text_limit or longest
        self.text = TextInput(name="text", tokens=TOKENS, max_tokens=min(limit, longest))
        self.tokenizer = checkpoint.tokenizer

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """The pooled vector of each row."""
        import torch

        mask = batch.mask("L")
        with torch.inference_mode():
            states = self._model(input_ids=batch[TOKENS], attention_mask=mask.long())
            pooled = self._pool(states.last_hidden_state, mask).float()
            if self._normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return {EMBEDDING: pooled}

    def unload(self) -> None:
        """Drop the weights."""
        del self._model


def _load_model(checkpoint: EmbeddingCheckpoint, dtype: str) -> Any:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModel
    from transformers.utils import logging

    # Progress bars would run through the log, and failures come as exceptions.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, info = AutoModel.from_pretrained(
            checkpoint.folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise CannotLoad(f"{checkpoint.folder} cannot be loaded: {error}") from error
    # transformers fills what it does not find with random numbers, and would serve nonsense.
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(_UNUSED_WEIGHTS))
    if missing:
        raise CannotLoad(f"{checkpoint.folder} lacks weights: {', '.join(missing[:5])}")
    return model.eval()


def _longest(checkpoint: EmbeddingCheckpoint, model: Any) -> int:
    positions = checkpoint.positions
    if positions is None:
        if checkpoint.text_limit is None:
            raise CannotLoad("neither config.json nor the tokenizer's files say how long a text is")
        return checkpoint.text_limit
    # Models of RoBERTa's family count positions from behind the padding index.
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - padding - 1


def _mean(states: Any, mask: Any) -> Any:
    kept = mask.unsqueeze(-1).to(states.dtype)
    # Summed in float32: a bfloat16 sum over hundreds of tokens loses the small ones.
    total = (states * kept).float().sum(1)
    return total / kept.float().sum(1).clamp(min=1e-9)


def _cls(states: Any, mask: Any) -> Any:
    return states[:, 0]


def _max(states: Any, mask: Any) -> Any:
    return states.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)


def _last_token(states: Any, mask: Any) -> Any:
    last = mask.sum(1) - 1
    return states[range(len(states)), last]


_POOLING: Final[Mapping[Pooling, Callable[[Any, Any], Any]]] = {
    Pooling.MEAN: _mean,
    Pooling.CLS: _cls,
    Pooling.MAX: _max,
    Pooling.LAST_TOKEN: _last_token,
}
