"""Texts: embeddings, classification and ranking of whole texts, classification of their tokens.

Token ids in. Embeddings equal those of sentence-transformers for the same ids; the others equal
what transformers' own class gives for an item by itself. Token vectors are pooled in float32: a
bfloat16 sum over hundreds of tokens loses the small ones.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.inference.description import TextInput
from batchedmodel_model_server.api.adapters import AdapterBounds
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.handler import Spec
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.checkpoint import (
    LOGITS,
    Pooling,
    TextFiles,
    classes_of,
    read_text_files,
)
from batchedmodel_model_server.handlers.transformers_models import (
    SEGMENTS,
    TOKENS,
    Encoder,
    Place,
    Task,
    bank_of,
    load_model,
)

EMBEDDING: Final = "embedding"
SCORE: Final = "score"
_PROJECTION: Final = "text_projection"
_POOLER: Final = "pooler."  # a head that some checkpoints lack and no embedding needs


def text_embedding(
    path: Path, place: Place, shortest: int | None = None, adapters: AdapterBounds | None = None
) -> Task:
    """One vector for each text, which may be cut as the checkpoint or `shortest` says.

    Raises `CannotLoad`.
    """
    files = read_text_files(path)
    model, _ = load_model(files.base, files.folder, place, spare=_POOLER)
    bank = bank_of(model, adapters, None)
    return embedding_of(model, files, place, shortest, bank=bank)


def embedding_of(
    model: Any, files: TextFiles, place: Place, shortest: int | None = None, **declared: Any
) -> Task:
    """The same of a loaded model without its head; `declared`: what else the task has."""
    is_whole = files.pooling is Pooling.OWN
    encoder = Encoder(model, place.device, packs=not is_whole)
    size = int(model.config.projection_dim) if hasattr(model, _PROJECTION) else encoder.hidden_size
    shortest = files.shortest if shortest is None else shortest
    if shortest is not None and shortest > size:
        raise CannotLoad(
            f"embeddings of {size} numbers cannot be cut to {shortest}: by "
            "spec.model.parameters.shortestEmbedding, or matryoshka_dimensions of config.json"
        )

    def run(batch: Batch) -> Mapping[str, Any]:
        import torch

        if is_whole:
            given = model(**encoder.padded(batch))
            pooled = getattr(given, "text_embeds", None)
            pooled = (given.pooler_output if pooled is None else pooled).float()
        else:
            states = encoder.states(batch)
            # Tokens one text behind the other, which is how a packed row has them already.
            tokens = states[0] if batch.packed() else states[batch.mask("L")]
            lengths = torch.from_numpy(batch.lengths).to(place.device)
            pooled = _pooled(files.pooling, tokens, lengths)
        if files.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return {EMBEDDING: pooled}

    return _task(
        encoder,
        files,
        has_segments=False,
        outputs={EMBEDDING: Spec("FP32", (size,))},
        run=run,
        embedding=EMBEDDING,
        shortest_embedding=shortest,
        **declared,
    )


def text_classifier(
    path: Path, place: Place, adapters: AdapterBounds | None = None, *, of_tokens: bool = False
) -> Task:
    """A raw score for each label, and for each token if it is `of_tokens`.

    Or the one score of a model that ranks pairs of texts.
    """
    files = read_text_files(path)
    model = load_with_head(files, place)
    if model.config.pad_token_id is None:
        # Some heads look for the last token of a text, which is the one before the padding.
        model.config.pad_token_id = files.pad
    bank = bank_of(model, adapters, int(model.config.num_labels))
    encoder = Encoder(model.base_model, place.device)
    logits = _scores(model, encoder, files.pad, of_tokens=of_tokens)
    classes = classes_of(files.config)
    count = len(classes.labels)
    if count == 1 and not of_tokens:
        return _task(
            encoder,
            files,
            outputs={SCORE: Spec("FP32", ())},
            run=lambda batch: {SCORE: logits(batch)[:, 0]},
            bank=bank,
            ranking=SCORE,
        )
    return _task(
        encoder,
        files,
        outputs={LOGITS: Spec("FP32", ("L", count) if of_tokens else (count,))},
        run=lambda batch: {LOGITS: logits(batch)},
        bank=bank,
        classification=classes,
    )


def load_with_head(files: TextFiles, place: Place) -> Any:
    """The model with the head that its architecture has; raises `CannotLoad`."""
    model, _ = load_model(files.architecture, files.folder, place)
    if model.base_model is model:
        raise CannotLoad(f"config.json: {files.architecture} is not a head on a base model")
    return model


def _scores(model: Any, encoder: Encoder, pad: int, *, of_tokens: bool) -> Callable[[Batch], Any]:
    """What gives the scores of a batch: the model itself, also for the states of a packed row.

    Heads differ from architecture to architecture, and transformers has no name for them. So the
    whole model is called, for a packed row with its base replaced by one that gives what was
    computed. Whether its head is content with that is tried by the self-test.
    """
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

    base, real = model.base_model, dict[str, Any]()
    pooler = getattr(base, "pooler", None)

    class Computed(torch.nn.Module):  # type: ignore[misc]
        states: Any = None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            states = self.states
            pooled = None if pooler is None else pooler(states)
            return BaseModelOutputWithPoolingAndCrossAttentions(
                last_hidden_state=states, pooler_output=pooled
            )

    def with_real(_: Any, args: Any, named: Any) -> Any:
        # Heads are shown where texts end; by real ids the padding's id within one would end it.
        if not real:
            return None
        return ((real[TOKENS], *args[1:]), named) if args else (args, {**named, **real})

    computed = Computed()
    base.register_forward_pre_hook(with_real, with_kwargs=True)

    def padded(batch: Batch) -> Any:
        given = encoder.padded(batch)
        real[TOKENS] = given[TOKENS]
        try:
            return model(**{**given, TOKENS: pad + given["attention_mask"]}).logits
        finally:
            real.clear()

    def scores(batch: Batch) -> Any:
        if batch.packed() is None:
            return padded(batch)
        states = encoder.states(batch)
        mask = states.new_ones(states.shape[:2]).long()
        if not of_tokens:
            seen = batch.mask("L")
            rows = states.new_zeros(*seen.shape, states.shape[-1])
            rows[seen] = states[0]
            states, mask = rows, seen.long()
        computed.states = states
        setattr(model, model.base_model_prefix, computed)
        try:
            logits = model(input_ids=pad + mask, attention_mask=mask).logits
        finally:
            setattr(model, model.base_model_prefix, base)
            computed.states = None
        return logits[0] if of_tokens else logits

    return scores


def _task(
    encoder: Encoder, files: TextFiles, *, has_segments: bool = True, **declared: Any
) -> Task:
    """The task with what all texts have in common."""
    longest = files.text_limit if encoder.positions is None else encoder.positions
    if longest is None:
        raise CannotLoad(
            "neither config.json nor the tokenizer's files say how long a text is: set "
            "model_max_length in tokenizer_config.json"
        )
    inputs = {TOKENS: Spec("INT64", ("L",), pad=files.pad, max=longest, vocab=files.vocabulary)}
    if has_segments and encoder.segments:
        inputs[SEGMENTS] = Spec("INT64", ("L",), max=longest, vocab=encoder.segments)
    text = TextInput(
        name="text",
        tokens=TOKENS,
        max_tokens=min(files.text_limit or longest, longest),
        segments=SEGMENTS if SEGMENTS in inputs else None,
    )
    return Task(
        inputs=inputs, packs=encoder.packs, text=text, tokenizer=files.tokenizer, **declared
    )


def _pooled(how: Pooling, states: Any, lengths: Any) -> Any:
    """Tokens x hidden size and the number of tokens of each text, to texts x hidden size."""
    import torch

    if how is Pooling.CLS:
        return states[lengths.cumsum(0) - lengths].float()
    if how is Pooling.LAST_TOKEN:
        return states[lengths.cumsum(0) - 1].float()
    states = states.float()
    if states.is_cuda:
        # In one order, unlike a GPU's sums by index, whose rounding differs from run to run.
        return torch.segment_reduce(states, how.value, lengths=lengths, axis=0)
    if how is Pooling.MAX:
        return torch.stack([text.amax(0) for text in states.split(lengths.tolist())])
    # On a CPU 15 times as fast as a reduction by segments, and its order is fixed.
    text = torch.arange(len(lengths)).repeat_interleave(lengths)
    total = torch.zeros(len(lengths), states.shape[-1]).index_add_(0, text, states)
    return total / lengths[:, None]
