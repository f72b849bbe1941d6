"""What processes are told by environment variables."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidInput, InvalidManifest
from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.environment import (
    AcceleratorNeed,
    ModelServerSettings,
    SidecarSettings,
    from_environment,
    source_from_json,
)
from batchedmodel_contract.processes.logs import LogFormat, LogLevel
from batchedmodel_kube.manifest.pod_settings import source_to_json, to_environment
from support.examples import examples

SIDECAR = {
    "BATCHEDMODEL_MODEL_NAME": "minilm",
    "BATCHEDMODEL_MODEL_SOCKET": "/run/batchedmodel/model.sock",
    "BATCHEDMODEL_SETTINGS_FOLDER": "/etc/batchedmodel",
}
MODEL_SERVER = {
    "BATCHEDMODEL_MODEL_NAME": "minilm",
    "BATCHEDMODEL_MODEL_SOCKET": "/run/batchedmodel/model.sock",
    "BATCHEDMODEL_HANDLER": "hf",
    "BATCHEDMODEL_CACHE_FOLDER": "/cache",
}

# A variable holds neither NUL nor half of a surrogate pair, and an empty one counts as absent.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
sources = st.one_of(
    st.builds(Source, path=texts),
    st.builds(Source, python_package=st.just("my_models.minilm")),
    st.builds(
        Source,
        hugging_face=st.builds(
            HuggingFace, repo=st.just("owner/model"), revision=st.sampled_from(["main", "v1.0/x"])
        ),
    ),
)


def test_a_sidecar_needs_three_variables_and_has_defaults_for_the_rest() -> None:
    read = from_environment(SidecarSettings, SIDECAR)
    assert read == SidecarSettings(
        model_name="minilm",
        model_socket="/run/batchedmodel/model.sock",
        settings_folder="/etc/batchedmodel",
    )
    assert (read.port, read.admin_port, read.log_level) == (8000, 9090, LogLevel.INFO)


def test_other_variables_are_none_of_our_business() -> None:
    read = from_environment(SidecarSettings, SIDECAR | {"PATH": "/bin", "PORT": "x"})
    assert read.port == 8000


def test_an_empty_variable_counts_as_absent() -> None:
    read = from_environment(SidecarSettings, SIDECAR | {"BATCHEDMODEL_PORT": ""})
    assert read.port == 8000
    with pytest.raises(InvalidManifest, match="BATCHEDMODEL_MODEL_NAME: is required"):
        from_environment(SidecarSettings, SIDECAR | {"BATCHEDMODEL_MODEL_NAME": ""})


def test_every_mistake_is_named_by_its_variable() -> None:
    with pytest.raises(InvalidManifest) as caught:
        from_environment(
            SidecarSettings,
            {
                "BATCHEDMODEL_MODEL_NAME": "minilm",
                "BATCHEDMODEL_SETTINGS_FOLDER": "/etc/batchedmodel",
                "BATCHEDMODEL_PORT": "65536",
                "BATCHEDMODEL_ADMIN_PORT": "eighty",
                "BATCHEDMODEL_DRAIN_DELAY_SECONDS": "NaN",
                "BATCHEDMODEL_LOG_LEVEL": "loud",
            },
        )
    assert str(caught.value).splitlines() == [
        'BATCHEDMODEL_PORT: "65536" is above the maximum 65535',
        'BATCHEDMODEL_ADMIN_PORT: "eighty" is not JSON',
        'BATCHEDMODEL_DRAIN_DELAY_SECONDS: "NaN" is not within 0 to 120',
        'BATCHEDMODEL_LOG_LEVEL: "loud" is not one of debug, info, warning, error',
    ]


@pytest.mark.parametrize(
    ("variable", "text", "rule"),
    [
        pytest.param("PORT", "true", "is not an integer", id="a truth value"),
        pytest.param("PORT", "80.5", "is not an integer", id="a fraction"),
        pytest.param("PORT", "9" * 5000, "is not JSON", id="more digits than Python reads"),
        pytest.param("PORT", "[" * 100_000, "is not JSON", id="nested too deeply"),
        pytest.param("DRAIN_TIMEOUT_SECONDS", '"35"', "is not a number", id="a quoted number"),
        pytest.param("TOKEN_FILE", "x" * 513, "is longer than 512 characters", id="a long text"),
    ],
)
def test_a_wrong_variable_names_the_rule_it_breaks(variable: str, text: str, rule: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        from_environment(SidecarSettings, SIDECAR | {f"BATCHEDMODEL_{variable}": text})
    assert str(caught.value).startswith(f"BATCHEDMODEL_{variable}: ")
    assert str(caught.value).endswith(rule)


def test_parameters_are_strings_by_name() -> None:
    variables = MODEL_SERVER | {"BATCHEDMODEL_PARAMETERS": '{"b": "2", "a": "1"}'}
    read = from_environment(ModelServerSettings, variables)
    assert read.parameters == (("a", "1"), ("b", "2"))
    with pytest.raises(InvalidManifest, match=r"BATCHEDMODEL_PARAMETERS: .* not a mapping"):
        from_environment(ModelServerSettings, MODEL_SERVER | {"BATCHEDMODEL_PARAMETERS": "[1]"})


@settings(max_examples=examples(100))
@given(
    st.builds(
        SidecarSettings,
        model_name=texts,
        model_socket=texts,
        settings_folder=texts,
        host=texts,
        port=st.integers(0, 65535),
        admin_port=st.integers(0, 65535),
        token_file=texts | st.just(""),
        drain_delay_seconds=st.floats(0, 120),
        drain_timeout_seconds=st.floats(0, 3600),
        max_body_bytes=st.integers(1024, 2**30),
        max_queue_bytes=st.integers(2**17, 2**40),
        connection_age_seconds=st.floats(1, 86_400),
        upstream_protocol=st.sampled_from(ServerProtocol),
        idempotent=st.booleans(),
        log_level=st.sampled_from(LogLevel),
        log_format=st.sampled_from(LogFormat),
    )
)
def test_sidecar_settings_survive_the_environment(told: SidecarSettings) -> None:
    assert from_environment(SidecarSettings, to_environment(told)) == told


@settings(max_examples=examples(100))
@given(
    st.builds(
        ModelServerSettings,
        model_name=texts,
        model_socket=texts,
        handler=texts,
        source=sources.map(source_to_json) | st.just(""),
        parameters=st.dictionaries(texts, st.text(max_size=20), max_size=5).map(
            lambda mapping: tuple(sorted(mapping.items()))
        ),
        max_batch_size=st.integers(1, 4096),
        accelerator=st.sampled_from(AcceleratorNeed),
        kv_cache_bytes=st.integers(0, 2**40),
        kv_cache_fraction=st.floats(0, 1),
        max_context_tokens=st.integers(0, 2**20),
        cache_folder=texts,
        log_level=st.sampled_from(LogLevel),
        log_format=st.sampled_from(LogFormat),
    )
)
def test_model_server_settings_survive_the_environment(told: ModelServerSettings) -> None:
    assert from_environment(ModelServerSettings, to_environment(told)) == told


@settings(max_examples=examples(100))
@given(sources)
def test_a_source_survives_its_variable(source: Source) -> None:
    assert source_from_json(source_to_json(source)) == source


def test_no_source_is_an_empty_variable() -> None:
    assert source_to_json(None) == ""
    assert source_from_json("") is None


def test_the_longest_folder_name_fits_its_variable() -> None:
    source = source_to_json(Source(path="\N{GRINNING FACE}" * 4096))
    read = from_environment(ModelServerSettings, MODEL_SERVER | {"BATCHEDMODEL_SOURCE": source})
    assert read.source == source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", 'source: "{" is not JSON', id="cut off"),
        pytest.param("[" * 100_000, "is not JSON", id="nested too deeply"),
        pytest.param("[]", "source: source: [] is not a mapping", id="a list"),
        pytest.param('{"path": 3}', "source: source.path: 3 is not a string", id="a number"),
        pytest.param('{"folder": "x"}', "is not a known field", id="an unknown field"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        source_from_json(text)
    assert message in str(caught.value)


def test_every_variable_that_is_written_is_text() -> None:
    told = from_environment(
        ModelServerSettings, MODEL_SERVER | {"BATCHEDMODEL_PARAMETERS": json.dumps({"a": "1"})}
    )
    assert to_environment(told) == MODEL_SERVER | {
        "BATCHEDMODEL_PARAMETERS": '{"a": "1"}',
        "BATCHEDMODEL_TRUST": "false",
        "BATCHEDMODEL_MAX_BATCH_SIZE": "32",
        "BATCHEDMODEL_IDEMPOTENT": "true",
        "BATCHEDMODEL_ACCELERATOR": "None",
        "BATCHEDMODEL_KV_CACHE_BYTES": "0",
        "BATCHEDMODEL_KV_CACHE_FRACTION": "0.0",
        "BATCHEDMODEL_MAX_CONTEXT_TOKENS": "0",
        "BATCHEDMODEL_ADAPTERS_ONLINE": "false",
        "BATCHEDMODEL_LOG_LEVEL": "info",
        "BATCHEDMODEL_LOG_FORMAT": "text",
    }
