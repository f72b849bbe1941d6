"""What the sidecar learns of a model of our server before it asks anything."""

from http import HTTPStatus
from typing import Any, Final

import aiohttp
import orjson

from batchedmodel_contract.generation.description import generation_from_mapping
from batchedmodel_contract.inference.description import description_from_metadata
from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.processes import server_api
from batchedmodel_sidecar.codec.tokenizer import Tokens, text_threads
from batchedmodel_sidecar.generation.native.requests.preparer import TextPreparer
from batchedmodel_sidecar.model import ReadyModel

BASE: Final = "http://model"
_THREADS: Final = 2
_DEPTH: Final = 2  # one batch that runs and one handed over just in time


class LinkBroken(Exception):
    """The life line ended or never began; the message says why."""


class Handshake:
    """Asks the server; what is large and has not changed is kept from one model to the next."""

    def __init__(self, name: str, session: aiohttp.ClientSession) -> None:
        self._name = name
        self._session = session
        self._threads = text_threads(_THREADS)
        self._texts: TextPreparer | None = None
        """Of the last model that generates, for the same reason as `_tokens`."""
        self._tokens: Tokens | None = None
        """Of the last model with text: most versions have the tokenizer of the one before."""

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def learn(self, version: str | None) -> ReadyModel:
        """Learn what must be known before the first batch; the version before it serves on."""
        described = await self._json(server_api.model_path(self._name, version))
        description = description_from_metadata(described)
        profile = await self.profile(version)
        tokens = None
        if description.text is not None:
            tokenizer = await self._get(server_api.tokenizer_path(self._name, version))
            tokens = self._tokens
            # Reading a large one stops the loop for a second, in which others are served.
            if tokens is None or not tokens.are_of(tokenizer, description.text):
                tokens = self._tokens = Tokens(tokenizer, description.text, self._threads)
        return ReadyModel(
            description=description,
            profile=profile,
            tokens=tokens,
            texts=await self._generation(version),
            depth=_DEPTH,
            rows_pad=not description.equal_lengths,
        )

    async def profile(self, version: str | None) -> Profile:
        """What the server has measured of it by now."""
        return profile_from_mapping(await self._json(server_api.profile_path(self._name, version)))

    async def labels(self, adapter: int) -> tuple[str, ...] | None:
        """By which the adapter of this number classifies; None: it is not there any more."""
        path = server_api.labels_path(self._name, adapter)
        labels = await self._json(path, absent=b"null")
        if labels is not None and not isinstance(labels, list):
            raise LinkBroken(f"the model server answers no labels at {path}")
        return None if labels is None else tuple(map(str, labels))

    async def _generation(self, version: str | None) -> TextPreparer | None:
        """How the model generates text, if it does."""
        path = server_api.generation_path(self._name, version)
        told = await self._json(path, absent=b"null")
        if told is None:
            return None
        described = generation_from_mapping(told)
        tokenizer = await self._get(server_api.tokenizer_path(self._name, version))
        texts = self._texts
        if texts is None or not texts.is_of(described, tokenizer):
            texts = self._texts = TextPreparer(self._name, described, tokenizer)
        return texts

    async def _json(self, path: str, absent: bytes | None = None) -> Any:
        try:
            return orjson.loads(await self._get(path, absent))
        except orjson.JSONDecodeError as error:
            raise LinkBroken(f"the model server answers no JSON at {path}: {error}") from error

    async def _get(self, path: str, absent: bytes | None = None) -> bytes:
        """What is at a path; `absent`: what stands for a 404, where one is no failure."""
        async with self._session.get(BASE + path) as response:
            if response.status == HTTPStatus.NOT_FOUND and absent is not None:
                return absent
            if response.status != HTTPStatus.OK:
                raise LinkBroken(f"the model server answers {response.status} at {path}")
            return await response.read()
