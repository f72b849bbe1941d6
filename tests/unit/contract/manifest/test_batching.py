"""The batch settings as a file: effective values, round trip, digest, refusals."""

import json
import math
import re
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, settings_from_json
from support.examples import examples
from support.strategies import batch_settings, json_values

FIELDS = sorted(field.name for field in fields(BatchSettings))


def test_equal_settings_have_one_digest_however_their_numbers_were_written() -> None:
    whole = BatchSettings(max_wait_seconds=0, target_seconds=1, request_timeout_seconds=30)
    real = BatchSettings(max_wait_seconds=0.0, target_seconds=1.0, request_timeout_seconds=30.0)
    assert whole == real
    assert whole.digest() == real.digest()


@settings(max_examples=examples(100))
@given(batch_settings(), batch_settings())
def test_other_settings_have_another_digest(one: BatchSettings, other: BatchSettings) -> None:
    assert (one == other) == (one.digest() == other.digest())


def test_a_digest_is_a_short_word() -> None:
    assert len(BatchSettings().digest()) == 16
    assert BatchSettings().digest().isalnum()


def test_settings_that_contradict_each_other_cannot_be_made() -> None:
    with pytest.raises(InvalidInput, match=r"maxBatchSize: 0 must be 1 to maxQueueSize"):
        BatchSettings(max_batch_size=0)
    with pytest.raises(InvalidInput, match=r"maxBatchSize: 8 must be 1 to maxQueueSize"):
        BatchSettings(max_batch_size=8, max_queue_size=7)
    with pytest.raises(InvalidInput, match=r"maxWait: 1.0 must be 0 to the request time-out"):
        BatchSettings(max_wait_seconds=1.0, request_timeout_seconds=1.0)
    with pytest.raises(InvalidInput, match=r"maxWait: -0.1 must be"):
        BatchSettings(max_wait_seconds=-0.1)
    with pytest.raises(InvalidInput, match=r"maxWait: NaN must be"):
        BatchSettings(max_wait_seconds=float("nan"))
    with pytest.raises(InvalidInput, match=r"targetLatency: 0.0 must be 0 to the request time-out"):
        BatchSettings(target_seconds=0.0)
    with pytest.raises(InvalidInput, match=r"targetLatency: 2.0 must be 0 to the request time-out"):
        BatchSettings(target_seconds=2.0, request_timeout_seconds=2.0)
    with pytest.raises(InvalidInput, match=r"targetLatency: NaN must be"):
        BatchSettings(target_seconds=float("nan"))
    with pytest.raises(InvalidInput, match=r"targetFirstToken: 30.0 must be 0 to the request"):
        BatchSettings(target_first_token_seconds=30.0)
    with pytest.raises(InvalidInput, match=r"targetToken: 0.0 must be 0 to the request time-out"):
        BatchSettings(target_token_seconds=0.0)
    with pytest.raises(InvalidInput, match=r"maxTokensPerStep: 7 is below maxSequences \(8\)"):
        BatchSettings(max_sequences=8, max_tokens_per_step=7)
    with pytest.raises(InvalidInput, match=r"lateness: is Refuse, which needs a target latency"):
        BatchSettings(lateness=Lateness.REFUSE)
    BatchSettings(lateness=Lateness.REFUSE, target_first_token_seconds=1.0)


def test_sidecars_that_run_on_through_an_upgrade_name_the_defaults_as_before() -> None:
    assert BatchSettings().digest() == "6de3d0f087ee9e36"
    assert BatchSettings(max_concurrent_batches=2).digest() != "6de3d0f087ee9e36"
    assert BatchSettings(max_concurrent_requests=2).digest() != "6de3d0f087ee9e36"
    assert BatchSettings(target_token_seconds=2).digest() != "6de3d0f087ee9e36"
    assert BatchSettings(max_sequences=2).digest() != "6de3d0f087ee9e36"
    assert BatchSettings(max_tokens_per_step=2).digest() != "6de3d0f087ee9e36"


@pytest.mark.parametrize("field", sorted(json.loads(BatchSettings().to_json())))
def test_a_file_that_lacks_a_field_is_refused(field: str) -> None:
    mapping = json.loads(BatchSettings().to_json())
    del mapping[field]
    with pytest.raises(InvalidInput, match=f"batching.json: {field}: is required"):
        settings_from_json(json.dumps(mapping))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut off"),
        pytest.param("[]", id="a list"),
        pytest.param("null", id="null"),
        pytest.param("[" * 100_000, id="nested too deeply"),
        pytest.param(b"\xff\xfe", id="not text"),
        pytest.param(BatchSettings().to_json().replace("32", "1e999"), id="infinite batch"),
        pytest.param(
            BatchSettings().to_json().replace(BatchSettings().policy, "Fifo"), id="unknown policy"
        ),
        pytest.param(BatchSettings().to_json().replace("32", "0"), id="no batch"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidInput):
        settings_from_json(text)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("policy", "Fifo", '"Fifo" is not one of Deadline, Greedy, Window'),
        ("max_batch_size", 0, "0 is below the minimum 1"),
        ("max_batch_size", 10**30, f"{10**30} is above the maximum 4096"),
        ("max_batch_size", 32.0, "32.0 is not an integer"),
        ("max_batch_size", "32", '"32" is not an integer'),
        ("max_batch_size", True, "true is not an integer"),
        ("max_queue_size", 1_000_001, "1000001 is above the maximum 1000000"),
        ("max_wait_seconds", 1e300, "1e+300 is not within 0 to 60"),
        ("max_wait_seconds", 60.001, "60.001 is not within 0 to 60"),
        ("max_wait_seconds", -0.001, "-0.001 is not within 0 to 60"),
        ("max_wait_seconds", 1e-9, "1e-09 is not a whole number of milliseconds"),
        ("max_wait_seconds", math.nan, "NaN is not within 0 to 60"),
        ("target_seconds", 0.0, "0.0 is not within 0.001 to 600"),
        ("target_seconds", 1.0005, "1.0005 is not a whole number of milliseconds"),
        ("target_seconds", "1", '"1" is not a number'),
        ("lateness", "Drop", '"Drop" is not one of Serve, Refuse'),
        ("lateness", None, "null is not one of Serve, Refuse"),
        ("trust_priority", 1, "1 is not true or false"),
        ("max_batch_tokens", 0, "0 is below the minimum 1"),
        ("max_concurrent_batches", 0, "0 is below the minimum 1"),
        ("max_concurrent_requests", 0, "0 is below the minimum 1"),
        ("max_sequences", 4097, "4097 is above the maximum 4096"),
        ("max_tokens_per_step", 0, "0 is below the minimum 1"),
        ("max_concurrent_requests", 4097, "4097 is above the maximum 4096"),
        ("target_first_token_seconds", 0.0, "0.0 is not within 0.001 to 600"),
        ("target_first_token_seconds", 1.0005, "1.0005 is not a whole number of milliseconds"),
        ("target_token_seconds", 60.001, "60.001 is not within 0.001 to 60"),
        ("target_token_seconds", "1", '"1" is not a number'),
        ("max_batch_tokens", 2**32 + 1, "4294967297 is above the maximum 4294967296"),
        ("request_timeout_seconds", math.inf, "Infinity is not within 1 to 3600"),
        ("request_timeout_seconds", 1e-9, "1e-09 is not within 1 to 3600"),
        ("request_timeout_seconds", 1.5, "1.5 is not a whole number of seconds"),
        ("request_timeout_seconds", 10**400, "is not within 1 to 3600"),
        ("length_buckets", [2**20 + 1], "has at [0] a value that is above the maximum 1048576"),
        ("length_buckets", [8, 8], "[8, 8] is not in ascending order"),
        ("length_buckets", list(range(1, 66)), "has 65 entries, more than the 64 allowed"),
    ],
)
def test_a_file_holds_nothing_that_no_manifest_may(field: str, value: object, message: str) -> None:
    mapping = json.loads(BatchSettings().to_json()) | {field: value}
    with pytest.raises(InvalidInput, match=f"batching.json: {field}: .*{re.escape(message)}"):
        settings_from_json(json.dumps(mapping))


def test_a_files_values_must_fit_together() -> None:
    mapping = json.loads(BatchSettings().to_json()) | {"max_queue_size": 16}
    with pytest.raises(InvalidInput, match="maxBatchSize: 32 must be 1 to maxQueueSize"):
        settings_from_json(json.dumps(mapping))


@settings(max_examples=examples(200))
@given(st.sampled_from(FIELDS), json_values(max_leaves=4))
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    mapping = json.loads(BatchSettings().to_json()) | {field: value}
    try:
        settings_from_json(json.dumps(mapping))
    except InvalidInput as refused:
        str(refused).encode()
