"""Texts: embeddings, classification and ranking of whole texts, classification of their tokens.

Token ids in. Embeddings equal those of sentence-transformers for the same ids; the others equal
what transformers' own class gives for an item by itself. Token vectors are pooled in float32: a
bfloat16 sum over hundreds of tokens loses the small ones.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.inference.description import TextInput
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.handler import Spec
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.checkpoint import (
    Pooling,
    TextFiles,
    classes_of,
    read_embedding,
    read_text_files,
)
from batchedmodel_model_server.handlers.transformers_models import (
    SEGMENTS,
    TOKENS,
    Encoder,
    Place,
    Task,
    load_model,
)

EMBEDDING: Final = "embedding"
LOGITS: Final = "logits"
SCORE: Final = "score"
_POOLER: Final = "pooler."  # a head that some checkpoints lack and no embedding needs


def text_embedding(path: Path, place: Place, shortest: int | None = None) -> Task:
    """One vector for each text, which may be cut as the checkpoint or `shortest` says.

    Raises `CannotLoad`.
    """
    checkpoint = read_embedding(path)
    files = checkpoint.files
    model, _ = load_model("AutoModel", files.folder, place, spare=_POOLER)
    encoder, pool = Encoder(model, place.device), _POOLING[checkpoint.pooling]
    shortest = checkpoint.shortest if shortest is None else shortest
    if shortest is not None and shortest > encoder.hidden_size:
        raise CannotLoad(
            f"embeddings of {encoder.hidden_size} numbers cannot be cut to {shortest}: by "
            "spec.model.parameters.shortestEmbedding, or matryoshka_dimensions of config.json"
        )

    def run(batch: Batch) -> Mapping[str, Any]:
        import torch

        states = encoder.states(batch)
        # Tokens one text behind the other, which is how a packed row has them already.
        tokens = states[0] if batch.packed() else states[batch.mask("L")]
        pooled = pool(tokens, torch.from_numpy(batch.lengths).to(place.device))
        if checkpoint.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return {EMBEDDING: pooled}

    return Task(
        inputs=_inputs(encoder, files, with_segments=False),
        outputs={EMBEDDING: Spec("FP32", (encoder.hidden_size,))},
        run=run,
        packs=encoder.packs,
        text=_text(encoder, files, with_segments=False),
        tokenizer=files.tokenizer,
        embedding=EMBEDDING,
        shortest_embedding=shortest,
    )


def text_classifier(path: Path, place: Place) -> Task:
    """A raw score for each label, or the one score of a model that ranks pairs of texts."""
    files = read_text_files(path)
    model, encoder = _with_head(files, place)
    classes = classes_of(files.config, LOGITS)
    ranks = len(classes.labels) == 1
    head = _head_on_states(model)

    def run(batch: Batch) -> Mapping[str, Any]:
        import torch

        states = encoder.states(batch)
        mask = batch.mask("L")
        if batch.packed():
            rows = states.new_zeros(*mask.shape, states.shape[-1])
            rows[mask] = states[0]
            states = rows
        ids = torch.where(mask, files.pad + 1, files.pad)
        logits = head(states, ids, mask.long())
        return {SCORE: logits[:, 0]} if ranks else {LOGITS: logits}

    return Task(
        inputs=_inputs(encoder, files, with_segments=True),
        outputs={SCORE: Spec("FP32", ())}
        if ranks
        else {LOGITS: Spec("FP32", (len(classes.labels),))},
        run=run,
        packs=encoder.packs,
        text=_text(encoder, files, with_segments=True),
        tokenizer=files.tokenizer,
        classification=None if ranks else classes,
        ranking=SCORE if ranks else None,
    )


def token_classifier(path: Path, place: Place) -> Task:
    """A raw score for each label and token."""
    files = read_text_files(path)
    model, encoder = _with_head(files, place)
    classes = classes_of(files.config, LOGITS)
    head = _head_on_states(model)

    def run(batch: Batch) -> Mapping[str, Any]:
        states = encoder.states(batch)
        mask = states.new_ones(states.shape[:2]).long()
        logits = head(states, mask, mask)
        return {LOGITS: logits[0] if batch.packed() else logits}

    return Task(
        inputs=_inputs(encoder, files, with_segments=True),
        outputs={LOGITS: Spec("FP32", ("L", len(classes.labels)))},
        run=run,
        packs=encoder.packs,
        text=_text(encoder, files, with_segments=True),
        tokenizer=files.tokenizer,
        classification=classes,
    )


def _with_head(files: TextFiles, place: Place) -> tuple[Any, Encoder]:
    model, _ = load_model(files.architecture, files.folder, place)
    if model.base_model is model:
        raise CannotLoad(f"config.json: {files.architecture} is not a head on a base model")
    if model.config.pad_token_id is None:
        # Some heads look for the last token of a text, which is the one before the padding.
        model.config.pad_token_id = files.pad
    return model, Encoder(model.base_model, place.device)


def _head_on_states(model: Any) -> Callable[[Any, Any, Any], Any]:
    """What the model does after its base, for states that were computed already.

    Heads differ from architecture to architecture, and transformers has no name for them: so the
    whole model is called, with its base replaced by one that gives what was computed.
    """
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

    pooler = getattr(model.base_model, "pooler", None)

    class Computed(torch.nn.Module):  # type: ignore[misc]
        states: Any = None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            states = self.states
            pooled = None if pooler is None else pooler(states)
            return BaseModelOutputWithPoolingAndCrossAttentions(
                last_hidden_state=states, pooler_output=pooled
            )

    base = Computed()
    setattr(model, model.base_model_prefix, base)

    def head(states: Any, ids: Any, mask: Any) -> Any:
        base.states = states
        try:
            return model(input_ids=ids, attention_mask=mask).logits
        finally:
            base.states = None

    return head


def _inputs(encoder: Encoder, files: TextFiles, *, with_segments: bool) -> dict[str, Spec]:
    longest = _longest(encoder, files)
    inputs = {TOKENS: Spec("INT64", ("L",), pad=files.pad, max=longest, vocab=files.vocabulary)}
    if with_segments and encoder.segments:
        inputs[SEGMENTS] = Spec("INT64", ("L",), max=longest, vocab=encoder.segments)
    return inputs


def _text(encoder: Encoder, files: TextFiles, *, with_segments: bool) -> TextInput:
    longest = _longest(encoder, files)
    return TextInput(
        name="text",
        tokens=TOKENS,
        max_tokens=min(files.text_limit or longest, longest),
        segments=SEGMENTS if with_segments and encoder.segments else None,
    )


def _longest(encoder: Encoder, files: TextFiles) -> int:
    if encoder.positions is not None:
        return encoder.positions
    if files.text_limit is None:
        raise CannotLoad("neither config.json nor the tokenizer's files say how long a text is")
    return files.text_limit


def _mean(states: Any, lengths: Any) -> Any:
    import torch

    if states.is_cuda:
        return _reduced(states, lengths, "mean")
    # On a CPU 15 times as fast as a reduction by segments, and its order is fixed.
    text = torch.arange(len(lengths)).repeat_interleave(lengths)
    total = torch.zeros(len(lengths), states.shape[-1]).index_add_(0, text, states.float())
    return total / lengths[:, None]


def _max(states: Any, lengths: Any) -> Any:
    import torch

    if states.is_cuda:
        return _reduced(states, lengths, "max")
    return torch.stack([text.amax(0) for text in states.float().split(lengths.tolist())])


def _cls(states: Any, lengths: Any) -> Any:
    return states[lengths.cumsum(0) - lengths].float()


def _last_token(states: Any, lengths: Any) -> Any:
    return states[lengths.cumsum(0) - 1].float()


def _reduced(states: Any, lengths: Any, how: str) -> Any:
    import torch

    # In one order, unlike a GPU's sums by index, whose rounding differs from run to run.
    return torch.segment_reduce(states.float(), how, lengths=lengths, axis=0)


_POOLING: Final[Mapping[Pooling, Callable[[Any, Any], Any]]] = {
    Pooling.MEAN: _mean,
    Pooling.CLS: _cls,
    Pooling.MAX: _max,
    Pooling.LAST_TOKEN: _last_token,
}
"""Tokens x hidden size and the number of tokens of each text, to texts x hidden size."""
