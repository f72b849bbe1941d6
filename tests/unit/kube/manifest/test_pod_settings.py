"""What a manifest becomes for its pods: effective settings in base units."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.manifest.batching import (
    BatchSettings,
    Lateness,
    PolicyName,
    settings_from_json,
)
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.generation import Generation, KeyValueCache
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Model, Spec
from support.examples import examples


def settings_of(batching: Batching, generation: Generation | None = None) -> BatchSettings:
    return batch_settings(Spec(model=Model(), batching=batching, generation=generation))


@st.composite
def generations(draw: st.DrawFn) -> Generation | None:
    if draw(st.booleans()):
        return None
    return Generation(
        max_concurrent_requests=draw(st.none() | st.integers(1, 4096)),
        max_sequences=draw(st.none() | st.integers(1, 4096)),
        max_tokens_per_step=draw(st.none() | st.integers(4096, 1_000_000)),
        target_first_token_milliseconds=draw(st.none() | st.integers(1, 60_999)),
        target_token_milliseconds=draw(st.none() | st.integers(1, 60_000)),
    )


@st.composite
def effective_settings(draw: st.DrawFn) -> BatchSettings:
    """Settings that some manifest has."""
    size = draw(st.integers(1, 4096))
    target = draw(st.none() | st.integers(1, 60_999))
    return settings_of(
        Batching(
            policy=draw(st.sampled_from(PolicyName)),
            max_batch_size=size,
            max_wait_milliseconds=draw(st.integers(0, 60_000)),
            max_batch_tokens=draw(st.none() | st.integers(1, 2**32)),
            target_latency_milliseconds=target,
            lateness=Lateness.SERVE if target is None else draw(st.sampled_from(Lateness)),
            trust_priority=draw(st.booleans()),
            max_queue_size=draw(st.none() | st.integers(size, 1_000_000)),
            request_timeout_seconds=draw(st.integers(61, 3600)),
            length_buckets=tuple(sorted(draw(st.sets(st.integers(1, 2**20), max_size=64)))),
        ),
        draw(generations()),
    )


def test_the_settings_of_an_empty_section_are_the_defaults() -> None:
    assert settings_of(Batching()) == BatchSettings()
    assert settings_of(Batching(), Generation()) == BatchSettings()


def test_settings_are_in_base_units() -> None:
    batching = Batching(
        policy=PolicyName.WINDOW,
        max_batch_size=64,
        max_batch_tokens=8192,
        max_wait_milliseconds=7,
        target_latency_milliseconds=250,
        lateness=Lateness.REFUSE,
        trust_priority=True,
        max_queue_size=100,
        request_timeout_seconds=5,
        length_buckets=(16, 64),
    )
    assert settings_of(batching) == BatchSettings(
        policy=PolicyName.WINDOW,
        max_batch_size=64,
        max_batch_tokens=8192,
        max_wait_seconds=0.007,
        target_seconds=0.25,
        lateness=Lateness.REFUSE,
        trust_priority=True,
        max_queue_size=100,
        request_timeout_seconds=5.0,
        length_buckets=(16, 64),
    )


def test_those_of_generation_are_too() -> None:
    generation = Generation(
        max_concurrent_requests=64,
        max_sequences=32,
        max_tokens_per_step=512,
        target_first_token_milliseconds=1500,
        target_token_milliseconds=40,
    )
    assert settings_of(Batching(), generation) == BatchSettings(
        max_concurrent_requests=64,
        max_sequences=32,
        max_tokens_per_step=512,
        target_first_token_seconds=1.5,
        target_token_seconds=0.04,
    )


def test_what_a_model_keeps_from_its_start_is_no_setting_that_is_in_force_at_once() -> None:
    kept = Generation(max_context_tokens=4096, kv_cache=KeyValueCache(memory="1Gi"))
    assert settings_of(Batching(), kept) == BatchSettings()


@pytest.mark.parametrize(
    ("batch", "queue"), [(1, 2048), (128, 2048), (129, 2064), (4096, 65536)], ids=str
)
def test_a_queue_holds_2048_rows_or_16_batches_unless_given(batch: int, queue: int) -> None:
    assert settings_of(Batching(max_batch_size=batch)).max_queue_size == queue


@settings(max_examples=examples(100))
@given(effective_settings())
def test_settings_survive_their_file(given_settings: BatchSettings) -> None:
    read = settings_from_json(given_settings.to_json())
    assert read == given_settings
    assert read.digest() == given_settings.digest()
    assert settings_from_json(given_settings.to_json().encode()) == given_settings
