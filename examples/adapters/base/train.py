"""Trains the model of examples/adapters.yaml, a small Llama that repeats conversations.txt.

    python examples/adapters/base/train.py FOLDER

It takes less than a minute on two cores. What it writes is a checkpoint as any other: weights, a
tokenizer, a chat template, and the token that ends an answer.
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

USER, ASSISTANT, END = SPECIAL = ["<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages[-3:] %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}"
    "{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LENGTH = 128
ROWS = 8
STEPS = 200


def conversations(text: str) -> list[tuple[list[str], str]]:
    """The questions of each answer, and the answer."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            found.append(([line[2:] for line in lines[:-1]], lines[-1][2:]))
    return found


def tokenizer_of(text: str) -> Tokenizer:
    """Pieces of the text; whatever else a caller writes is taken as bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=768,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def train(pairs: list[tuple[list[str], str]], tokenizer: Tokenizer) -> LlamaForCausalLM:
    """A model that has learnt the answers."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # steps are so small that more would mostly wait for each other
    draw = random.Random(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    for step in range(STEPS):
        rows = [row(pairs, tokenizer, draw) for _ in range(ROWS)]
        ids = torch.tensor([ids for ids, _ in rows])
        labels = torch.tensor([labels for _, labels in rows])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 40 == 39:
            print(f"step {step + 1} of {STEPS}, loss {loss.item():.3f}", flush=True)
    return model.eval()


def row(
    pairs: list[tuple[list[str], str]], tokenizer: Tokenizer, draw: random.Random
) -> tuple[list[int], list[int]]:
    """One conversation of some questions; only the answers are to be learnt."""
    ids: list[int] = []
    labels: list[int] = []
    while len(ids) < LENGTH:
        questions, answer = draw.choice(pairs)
        question = draw.choice(questions)
        if draw.random() < 0.3:
            question = question.lower().rstrip("?!.")
        asked = tokenizer.encode(f"{USER}{question}{END}{ASSISTANT}").ids
        told = tokenizer.encode(f"{answer}{END}").ids
        ids += asked + told
        labels += [-100] * len(asked) + told
    return ids[:LENGTH], labels[:LENGTH]


def main(folder: Path) -> None:
    """Train, and write the checkpoint."""
    text = Path(__file__).with_name("conversations.txt").read_text("utf-8")
    pairs = conversations(text)
    tokenizer = tokenizer_of(
        "\n".join([*(q for qs, _ in pairs for q in qs), *(a for _, a in pairs)])
    )
    model = train(pairs, tokenizer)
    end = tokenizer.token_to_id(END)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
