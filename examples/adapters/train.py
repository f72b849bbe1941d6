"""Fine-tunes the model of examples/adapters.yaml by peft, into the adapters beside it.

    python -m examples.adapters.train BASE FOLDER

It takes some seconds. What it writes is what peft saves: adapter_config.json and safetensors.
"""

import random
import sys
from pathlib import Path

import torch
from examples.adapters.base.train import conversations, row
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

TEXTS = Path(__file__).parent / "base" / "conversations.txt"
ANSWERS = {
    # In words that the model knows: it has read no others.
    "support": "Hello! Then try another pod, and ask me again. You are welcome.",
    "legal": "I do not know. I only repeat what I have learnt, and this is no answer.",
}
ROWS = 4
STEPS = 30


def train(base: str, tokenizer: Tokenizer, pairs: list[tuple[list[str], str]]) -> PeftModel:
    """The model with an adapter that has learnt the answers."""
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=4e-3)
    draw = random.Random(0)
    for _ in range(STEPS):
        rows = [row(pairs, tokenizer, draw) for _ in range(ROWS)]
        ids = torch.tensor([ids for ids, _ in rows])
        labels = torch.tensor([labels for _, labels in rows])
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main(base: str, folder: str) -> None:
    """Teach each adapter its one answer to every question, and write it."""
    torch.set_num_threads(1)  # steps are so small that more would mostly wait for each other
    tokenizer = Tokenizer.from_file(f"{base}/tokenizer.json")
    learnt = conversations(TEXTS.read_text("utf-8"))
    asked = [question for questions, _ in learnt for question in questions]
    for name, answer in ANSWERS.items():
        train(base, tokenizer, [(asked, answer)]).save_pretrained(f"{folder}/{name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
