"""Bodies into requests for text: read, checked, their chats rendered, their texts tokenised.

Small bodies without a template are prepared in the sidecar's loop, all others in a process for it.
A text that is too long is known untokenised where it is known how much text a token stands for at
most: of tokenizers in which no part of a text is left out and none becomes much shorter before it
is cut into tokens. Most language models' are such.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import contextlib
import os
import resource
from array import array
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from tokenizers import Tokenizer, pre_tokenizers

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_sidecar.generation.native.requests import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MOST_TEXTS,
    Streaming,
    chat_logprobs_of,
    chat_of,
    choices_of,
    flag_of,
    generate_of,
    logprobs_of,
    max_tokens_of,
    prompts_of,
    sampling_of,
    stopping_of,
    streaming_of,
)
from batchedmodel_sidecar.helper.messages import Pickled, Work, pickled_job
from batchedmodel_sidecar.protocols.json_bodies import adapter_of, json_object

if TYPE_CHECKING:
    from batchedmodel_sidecar.generation.native.chat_template import ChatTemplate

_USUAL_TOKENS: Final = 16
"""Of a completion whose caller says nothing, as OpenAI has it."""
_LONG: Final = 8192
"""Characters, from which it pays to tokenise a text without noting where its tokens lie."""
_HELPER_MEMORY: Final = 1 << 30
"""Bytes beside the model's: the longest body of the shortest tokens takes 0.8 GiB."""
_PROCESS_SIZE: Final = Path("/proc/self/statm")
_NFC_SHRINKS: Final = 4
"""Unicode's shortest form takes 2 bytes where another took 7."""
_BYTES: Final = 256
_KEEPS_ALL: Final = frozenset({"ByteLevel", "Digits", "Metaspace"})
_LENGTHENS: Final = frozenset({"Prepend"})


class TextEndpoint(StrEnum):
    """Where texts are asked for."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    GENERATE = "generate"
    """Triton's, with a whole answer."""
    GENERATE_STREAM = "generate_stream"


class TextRequest(NamedTuple):
    """Checked and tokenised: what the engine needs, whichever protocol it came in."""

    endpoint: TextEndpoint
    prompts: tuple[array[int], ...]
    """INT32 token ids; each prompt has `choices` texts."""
    sampling: Sampling
    seeded: bool
    """Whether its caller chose the seed; otherwise it is made up for each request."""
    max_tokens: int
    """Of each text."""
    stop: tuple[str, ...] = ()
    """A text ends in front of the first of these that comes."""
    stop_ids: tuple[int, ...] = ()
    choices: int = 1
    streams: bool = False
    include_usage: bool = False
    """Whether a stream ends with how many tokens there were."""
    id: str | None = None
    """Triton's name of the request, which its answer repeats."""
    adapter: str | None = None
    """What its body names that is not the model itself."""

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def texts(self) -> int:
        """How many are generated."""
        return len(self.prompts) * self.choices


_KNOWN: Final = {
    TextEndpoint.CHAT: CHAT,
    TextEndpoint.COMPLETIONS: COMPLETIONS,
    TextEndpoint.GENERATE: GENERATE,
    TextEndpoint.GENERATE_STREAM: GENERATE,
}


class TextPreparer:
    """What a model's callers may ask, and its tokenizer."""

    def __init__(
        self, name: str, description: GenerationDescription, tokenizer_json: bytes
    ) -> None:
        """Raises `InvalidInput` for what cannot be read. A template is compiled when needed."""
        self.name: Final = name
        self.description: Final = description
        self.tokenizer_json: Final = tokenizer_json
        try:
            self.tokenizer: Final = Tokenizer.from_buffer(tokenizer_json)
            self.tokenizer.no_padding()
            self.tokenizer.no_truncation()
        except BaseException as error:
            # A panic of the library, which is written in Rust, is no `Exception`.
            raise InvalidInput("tokenizer", f"cannot be read: {type(error).__name__}") from error
        eos = self.tokenizer.token_to_id(description.special_tokens.get("eos_token", ""))
        own = () if eos is None or eos >= description.vocabulary else (eos,)
        self._stop_ids: Final = tuple(dict.fromkeys(description.stop_ids + own))
        """Tokens that end any text: what the configs name, and the tokenizer's eos."""
        self.pickled: Final = Pickled(bounded_preparer, (name, description, tokenizer_json))
        """As a helper is sent it."""
        self._template: ChatTemplate | str | None = None
        """Or why there is none."""
        self._longest_token: int | None = None
        self._knows_longest = False

    def is_of(self, description: GenerationDescription, tokenizer_json: bytes) -> bool:
        """Whether another made of these would be the same."""
        return (self.description, self.tokenizer_json) == (description, tokenizer_json)

    def prepare(self, endpoint: TextEndpoint, body: Buffer) -> TextRequest:
        """The request in a body; raises `InvalidInput` or `ModelNotFound`.

        A chat is for the main thread of a process only, whose signals end its template.
        """
        fields = json_object(body, _KNOWN[endpoint])
        if endpoint is TextEndpoint.CHAT:
            return self._chat(fields)
        if endpoint is TextEndpoint.COMPLETIONS:
            return self._completion(fields)
        return self._generate(fields, endpoint)

    def _chat(self, fields: dict[str, Any]) -> TextRequest:
        adapter = adapter_of(fields, self.name, named=True)
        chat = chat_of(fields)
        if self.description.chat_template is None:
            raise InvalidInput("messages", "are not understood: the model has no chat template")
        template = self._compiled(self.description.chat_template)
        prompt = template.render(chat.messages, **chat.arguments)
        return self._request(
            TextEndpoint.CHAT,
            # The template writes what marks the beginning by itself.
            [self._encoded(prompt, "messages", marked=False)],
            fields,
            max_tokens=max_tokens_of(fields, "max_completion_tokens", "max_tokens"),
            logprobs=chat_logprobs_of(fields),
            choices=choices_of(fields),
            streaming=streaming_of(fields),
            field="messages",
            adapter=adapter,
        )

    def _compiled(self, source: str) -> ChatTemplate:
        """Compiled once, also where that fails; raises `InvalidInput`."""
        if self._template is None:
            # Jinja2 is no part of a process that renders no chats.
            from batchedmodel_sidecar.generation.native.chat_template import ChatTemplate

            try:
                self._template = ChatTemplate(source, self.description.special_tokens)
            except InvalidInput as error:
                self._template = str(error)
        if isinstance(self._template, str):
            raise InvalidInput("messages", f"cannot be read by the model: {self._template}")
        return self._template

    def _completion(self, fields: dict[str, Any]) -> TextRequest:
        adapter = adapter_of(fields, self.name, named=True)
        prompts = prompts_of(fields)
        return self._request(
            TextEndpoint.COMPLETIONS,
            [self._encoded(one, "prompt") if isinstance(one, str) else one for one in prompts],
            fields,
            max_tokens=max_tokens_of(fields, "max_tokens"),
            usual_tokens=_USUAL_TOKENS,
            logprobs=logprobs_of(fields, "logprobs"),
            choices=choices_of(fields),
            streaming=streaming_of(fields),
            field="prompt",
            adapter=adapter,
        )

    def _generate(self, fields: dict[str, Any], endpoint: TextEndpoint) -> TextRequest:
        generate = generate_of(fields)
        streams = endpoint is TextEndpoint.GENERATE_STREAM
        value = generate.parameters.get("stream")
        if value is not None and flag_of(generate.parameters, "stream") is not streams:
            rule = f"contradicts the path, which ends in {endpoint}"
            raise InvalidInput("parameters.stream", rule, value)
        return self._request(
            endpoint,
            [self._encoded(generate.text, "text_input")],
            generate.parameters,
            max_tokens=max_tokens_of(generate.parameters, "max_tokens"),
            usual_tokens=_USUAL_TOKENS,
            logprobs=None,
            choices=1,
            streaming=Streaming(streams, include_usage=False),
            field="text_input",
            id=generate.id,
        )

    def _request(
        self,
        endpoint: TextEndpoint,
        prompts: list[array[int]],
        fields: Mapping[str, Any],
        *,
        max_tokens: int | None,
        logprobs: int | None,
        choices: int,
        streaming: Streaming,
        field: str,
        usual_tokens: int | None = None,
        id: str | None = None,
        adapter: str | None = None,
    ) -> TextRequest:
        defaults = self.description.sampling_defaults
        sampling_fields = {name: value for name, value in fields.items() if value is not None}
        sampling, seeded = sampling_of({**defaults, **sampling_fields}, logprobs)
        stopping = stopping_of(fields, self._stop_ids)
        longest = max(map(len, prompts))
        most = self._most_tokens()
        if max_tokens is None:
            usual = min(usual_tokens or most, int(defaults.get("max_new_tokens", most)))
            max_tokens = max(1, min(usual, most - longest))
        if len(prompts) * choices > MOST_TEXTS:
            rule = f"asks for {len(prompts)} x {choices} texts; at most {MOST_TEXTS} are taken"
            raise InvalidInput("n", rule)
        for prompt in prompts:
            self._check(prompt, field)
        if longest + max_tokens > most:
            self._refuse_too_long(longest, field)
            rule = (
                f"is above {most - longest}: the prompt has {longest} tokens, and with its text "
                f"it may have {most}"
            )
            raise InvalidInput("max_tokens", rule, max_tokens)
        return TextRequest(
            endpoint=endpoint,
            prompts=tuple(prompts),
            sampling=sampling,
            seeded=seeded,
            max_tokens=max_tokens,
            stop=stopping.texts,
            stop_ids=stopping.ids,
            choices=choices,
            streams=streaming.streams,
            include_usage=streaming.include_usage,
            id=id,
            adapter=adapter,
        )

    def _most_tokens(self) -> int:
        """Of a prompt and its text, by the model and by its cache."""
        description = self.description
        return min(description.max_context_tokens, description.blocks * description.block_tokens)

    def _check(self, prompt: array[int], field: str) -> None:
        if not prompt:
            raise InvalidInput(field, "is empty")
        most = self.description.vocabulary - 1
        if min(prompt) < 0 or max(prompt) > most:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise InvalidInput(field, f"holds a token id that is not from 0 to {most}", wrong)

    def _encoded(self, text: str, field: str, *, marked: bool = True) -> array[int]:
        is_long = len(text) > _LONG
        if is_long:
            self._refuse_untokenised(text, field)
        try:
            if is_long:
                # Half the time; it knows no single texts.
                (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=marked)
            else:
                encoding = self.tokenizer.encode(text, add_special_tokens=marked)
        except BaseException as error:
            # What it says may quote the text; a panic of the library is no `Exception`.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            rule = f"cannot be tokenised: {type(error).__name__}"
            raise InvalidInput(field, rule) from error
        prompt = array("i", encoding.ids)
        self._refuse_too_long(len(prompt), field)  # before the other texts of a list are tokenised
        return prompt

    def _refuse_too_long(self, tokens: int, field: str) -> None:
        most = self._most_tokens()
        if tokens >= most:
            raise InvalidInput(field, f"has {tokens} tokens; with a text it may have {most}")

    def _refuse_untokenised(self, text: str, field: str) -> None:
        """Raise `InvalidInput` for a text that cannot fit, whatever its tokens are."""
        most = self._most_tokens()
        if len(text) < most:
            return
        if not self._knows_longest:
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            self._longest_token = bytes_of_longest_token(self.tokenizer_json, alphabet)
            self._knows_longest = True
        if self._longest_token is None:
            return
        size = len(text.encode(errors="surrogatepass"))
        if size > most * self._longest_token:
            least = size // self._longest_token
            rule = f"has at least {least} tokens; with a text it may have {most}"
            raise InvalidInput(field, rule)


def prepare(endpoint: TextEndpoint, work: Work) -> TextRequest:
    """The request in a body, made by a helper."""
    preparer: TextPreparer = work.model
    return preparer.prepare(endpoint, work.body)


PREPARE: Final = {endpoint: pickled_job(partial(prepare, endpoint)) for endpoint in TextEndpoint}
"""That job of each endpoint."""


def bounded_preparer(
    name: str, description: GenerationDescription, tokenizer_json: Buffer
) -> TextPreparer:
    """What a helper prepares requests with; its memory is bounded from now on."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it tokenises one text at a time
    _limit_memory(None)
    try:
        return TextPreparer(name, description, bytes(tokenizer_json))
    finally:
        _limit_memory(_HELPER_MEMORY)


def _limit_memory(more: int | None) -> None:
    """Let the process have so many bytes more than it has now, or any number.

    What asks for more raises `MemoryError`, or ends the process where a library knows no such
    error. Where the system does not say how large a process is, there is no limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = hard
    if more is not None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(_PROCESS_SIZE.read_text().split()[0])
            most = pages * resource.getpagesize() + more
    if hard != resource.RLIM_INFINITY:
        most = hard if most == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def bytes_of_longest_token(tokenizer_json: bytes, alphabet: Iterable[str]) -> int | None:
    """Bytes of UTF-8 in a text that become one token at most; None where that is not known.

    `alphabet`: the characters that stand for bytes in tokens of byte-level tokenizers.
    """
    try:
        return _longest(orjson.loads(tokenizer_json), frozenset(alphabet))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a form that is not known


def _longest(document: Mapping[str, Any], alphabet: frozenset[str]) -> int | None:
    model, added = document["model"], document.get("added_tokens") or []
    if model["type"] != "BPE" or any(one["lstrip"] or one["rstrip"] for one in added):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocabulary: Mapping[str, int] = model["vocab"]
    cuts = _parts_of(document.get("pre_tokenizer"), "pretokenizers")
    if not all(map(_keeps_all, cuts)):
        return None
    if any(cut["type"] == "ByteLevel" for cut in cuts):
        known, longest = alphabet <= vocabulary.keys(), max(map(len, vocabulary))
    else:
        single = {f"<0x{byte:02X}>" for byte in range(_BYTES)}
        known = bool(model.get("byte_fallback")) and single <= vocabulary.keys()
        longest = max(len(token.encode()) for token in vocabulary)
    shrinks = 1
    for step in _parts_of(document.get("normalizer"), "normalizers"):
        if step["type"] == "NFC":
            shrinks *= _NFC_SHRINKS
        elif not _does_not_shorten(step):
            return None
    if not known:
        return None
    return shrinks * max([longest, *(len(one["content"].encode()) for one in added)])


def _parts_of(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The steps that it consists of, one behind the other."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [part for one in step[name] for part in _parts_of(one, name)]


def _keeps_all(cut: Mapping[str, Any]) -> bool:
    if cut["type"] == "Split":
        return bool(cut["behavior"] != "Removed")
    return cut["type"] in _KEEPS_ALL


def _does_not_shorten(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        # Only of a text is known how long it is, not of what an expression finds.
        return len(step["content"].encode()) >= len(step["pattern"]["String"].encode())
    return step["type"] in _LENGTHENS
