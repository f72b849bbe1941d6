"""Texts of our own engine follow the model that is ready."""

from dataclasses import replace

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.generation.native.texts import NativeGeneration
from batchedmodel_sidecar.generation.text_queue import TextQueue
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.responses import Refusals
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts
from batchedmodel_sidecar.telemetry.ledger import Ledger
from support.byte_tokenizer import tokenizer_json
from support.described_models import ENGINE, TEXTS, ready
from support.followed_link import Listener


def _model(tokenizer: bytes) -> ReadyModel:
    return replace(ready(TEXTS, ENGINE), tokenizer_json=tokenizer)


def _generation() -> NativeGeneration:
    ledger, served = Ledger(), ServedAdapters("m")
    budget = ByteBudget(1 << 20)
    regions = SharedRegions(1 << 20)
    refusals = Refusals(ledger, public_protocols())
    queue = TextQueue(BatchSettings(), GenerationCounts(ledger, 0.0), refusals, lambda: None)
    link = NativeLink("nowhere", Listener(), regions, served)
    bodies = BodyReader(max_bytes=1 << 20, budget=budget, slots=regions)
    return NativeGeneration("m", queue, link, bodies, served)


async def test_what_prepares_texts_is_kept_as_long_as_its_model_stays_the_same() -> None:
    generation, file, preparers = _generation(), tokenizer_json(), []
    for tokenizer in (file, bytes(bytearray(file)), file + b" "):
        generation.model_ready(_model(tokenizer))
        preparers.append(generation.preparer)
        generation.model_lost()
    assert preparers[0] is not None
    assert preparers[1] is preparers[0]
    assert preparers[2] is not preparers[0]
    await generation.close()


async def test_a_tokenizer_that_cannot_be_read_is_refused_and_serves_nothing() -> None:
    generation = _generation()
    with pytest.raises(InvalidInput, match="tokenizer: cannot be read"):
        generation.model_ready(_model(b"{"))
    assert generation.model is None
    await generation.close()
