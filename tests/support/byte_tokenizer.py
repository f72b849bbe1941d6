"""A tokenizer whose tokens are bytes, and a model description that goes with it."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from batchedmodel_contract.generation.description import GenerationDescription, StepSeconds

BEGIN, END = 256, 257
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@cache
def tokenizer_json() -> bytes:
    """256 bytes, then what begins and ends a text."""
    alphabet = _byte_characters()
    tokenizer = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BEGIN)]
    )
    return tokenizer.to_str().encode()


def described(**changes: object) -> GenerationDescription:
    """A model of such tokens."""
    known: dict[str, object] = {
        "vocabulary": 258,
        "max_context_tokens": 200,
        "block_tokens": 16,
        "blocks": 100,
        "max_sequences": 8,
        "max_tokens_per_step": 64,
        "step_seconds": StepSeconds(
            base=0.01, prefill_token=0.0001, sequence=0.0001, context_token=0.0
        ),
        "stop_ids": (END,),
        "chat_template": TEMPLATE,
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"},
    }
    return GenerationDescription(**{**known, **changes})  # type: ignore[arg-type]


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level tokenizers."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


@cache
def fallback_tokenizer_json() -> bytes:
    """Words, and single bytes for what is no word, as Llama 2, Mistral and Gemma have them."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
    for word in ("\N{LOWER ONE EIGHTH BLOCK}", "hello", "\N{LOWER ONE EIGHTH BLOCK}world", "x"):
        vocabulary[word] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    space = decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer.to_str().encode()
