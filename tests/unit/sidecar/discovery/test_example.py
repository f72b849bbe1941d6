"""The example request of any model is one that this model takes, as it stands."""

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.generation.description import GenerationDescription
from batchedmodel_contract.inference.batch import (
    BatchRequest,
    ragged,
)
from batchedmodel_contract.inference.description import (
    ModelDescription,
    TensorSpec,
    description_from_metadata,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_model_server.api.handler import DTYPES, Spec
from batchedmodel_model_server.batching.declaration import declaration_of, describe
from batchedmodel_model_server.batching.items import examine
from batchedmodel_sidecar.discovery.example import Example, Task, curl_line, example_of, tasks_of
from batchedmodel_sidecar.protocols.rows import rows_of_tensors
from batchedmodel_sidecar.protocols.v2 import read_body
from support.described_models import CLASSES, ENGINE, IDS, TEXTS
from support.examples import examples
from support.model_server_handlers import Giving


@pytest.mark.parametrize(
    ("model", "engine", "task", "path"),
    [
        (TEXTS, replace(ENGINE, chat_template="{{ x }}"), Task.CHAT, "/v1/chat/completions"),
        (TEXTS, ENGINE, Task.COMPLETIONS, "/v1/completions"),
        (replace(TEXTS, embedding="vector"), None, Task.EMBEDDINGS, "/v1/embeddings"),
        (replace(TEXTS, embedding="vector", text=None), None, Task.EMBEDDINGS, "/v1/embeddings"),
        (replace(TEXTS, classification=CLASSES), None, Task.CLASSIFICATION, "/classify"),
        (replace(TEXTS, ranking="score"), None, Task.RANKING, "/rerank"),
        (TEXTS, None, Task.INFERENCE, "/v2/models/m/infer"),
        (replace(TEXTS, text=None), None, Task.INFERENCE, "/v2/models/m/infer"),
    ],
)
def test_the_example_is_of_what_the_model_is_for(
    model: ModelDescription, engine: GenerationDescription | None, task: Task, path: str
) -> None:
    assert tasks_of(model, engine)[0] is task
    assert example_of(model, engine).path == path


def test_the_example_of_a_vast_tensor_takes_no_memory_of_its_size() -> None:
    """Its values were listed, and only then found to be too many to be written out."""
    vast = TensorSpec(name="x", datatype=Datatype.FP32, shape=(2**20, 2**25))
    example = example_of(replace(TEXTS, inputs=(vast,), text=None), None)
    assert example.zeros == 4 * 2**45


def test_the_example_of_a_chat_ends_before_the_context_does() -> None:
    """A small model that is asked without `max_tokens` may talk for minutes."""
    chat = example_of(TEXTS, replace(ENGINE, chat_template="{{ x }}"))
    assert chat.body["max_tokens"] == 100


def test_a_model_of_texts_that_takes_more_than_their_tokens_is_asked_with_tensors() -> None:
    age = TensorSpec(name="age", datatype=Datatype.FP32, shape=())
    model = replace(TEXTS, inputs=(IDS, age), classification=CLASSES, embedding="vector")
    assert tasks_of(model, None) == (Task.INFERENCE,)
    names = [entry["name"] for entry in example_of(model, None).body["inputs"]]
    assert names == ["ids", "age"]


@st.composite
def declared(draw: st.DrawFn) -> Mapping[str, Spec]:
    """Inputs that a handler may declare: any datatype, fixed sizes, and letters in common."""
    inputs = {}
    for name in draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)):
        sizes: list[int | str] = [1, 3, 40, "L", "H"]
        shape = tuple(draw(st.lists(st.sampled_from(sizes), max_size=3)))
        bounds: dict[str, Any] = {}
        if any(isinstance(size, str) for size in shape):
            bounds = {"min": draw(st.integers(1, 5)), "max": draw(st.integers(5, 9))}
        datatype = draw(st.sampled_from(sorted(DTYPES)))
        if DTYPES[datatype].kind in "iu" and draw(st.booleans()):
            bounds["vocab"] = draw(st.integers(1, 3))
        inputs[name] = Spec(datatype, shape, **bounds)
    return inputs


def sent(example: Example) -> tuple[bytes, str | None]:
    """Body and header length, as the line for a shell has them."""
    head = json.dumps(example.body).encode()
    return head + bytes(example.zeros), str(len(head)) if example.zeros else None


@settings(max_examples=examples(200), deadline=None)
@given(declared())
def test_any_handlers_example_is_taken_by_sidecar_and_model_server(
    inputs: Mapping[str, Spec],
) -> None:
    """Letters that several inputs have, least sizes, vocabularies and halves without JSON."""
    handler = Giving(None, {"y": Spec("FP32", ())}, inputs)
    declaration = declaration_of(handler)
    told = json.loads(json.dumps(describe("m", handler, declaration).to_metadata()))
    description = description_from_metadata(told)
    example = example_of(description, None)
    body, length = sent(example)
    _, tensors = read_body(body, length, "inputs")
    rows = rows_of_tensors(tensors, description)
    assert len(rows) == 1
    batch = BatchRequest(
        inputs=tuple(
            ragged(spec.name, spec.datatype, [(value.shape, value.data)])
            for spec, value in zip(description.inputs, rows[0].values, strict=True)
        )
    )
    assert examine(declaration, batch).faults == {}
    assert len(json.dumps(example.body)) < 2000


def test_the_line_for_a_shell_sends_body_and_zeros_as_they_are(tmp_path: Any) -> None:
    example = Example("/v2/models/m/infer", {"name": "it's $HOME"}, 7)
    stand_in = tmp_path / "curl"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments\ncat > body\n')
    stand_in.chmod(0o755)
    subprocess.run(
        ["sh", "-c", curl_line(example, "http://x")],
        check=True,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    head = json.dumps(example.body).encode()
    assert (tmp_path / "body").read_bytes() == head + bytes(7)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert f"Inference-Header-Content-Length: {len(head)}" in arguments
    assert "http://x/v2/models/m/infer" in arguments


def test_a_line_without_zeros_is_one_curl() -> None:
    example = Example("/classify", {"inputs": "It's I."})
    words = shlex.split(curl_line(example, "http://x"))
    assert words[:3] == ["curl", "-sN", "http://x/classify"]
    assert json.loads(words[-1]) == example.body


def test_the_line_of_a_model_with_many_inputs_is_no_longer_than_a_log_has() -> None:
    """Each tensor had its values written out: 400 of them made a line that was cut in two."""
    inputs = {f"input_{number}": Spec("FP32", (8, 8)) for number in range(400)}
    handler = Giving(None, {"y": Spec("FP32", ())}, inputs)
    description = describe("m", handler, declaration_of(handler))
    assert len(curl_line(example_of(description, None), "http://x")) < 65_536


def test_no_shell_takes_an_address_for_a_pattern() -> None:
    """zsh looked for files that match `[::1]`, and asked nobody."""
    for zeros in (0, 7):
        line = curl_line(Example("/classify", {"inputs": "I"}, zeros), "http://[::1]:8000")
        assert "'http://[::1]:8000/classify'" in line
