"""A lone text of SmolLM2-135M in bfloat16: our engine, and what callers see of it, over `generate`.

The engine's loop and transformers' `generate` compute the same greedy tokens behind the same prompt
in this process, with as many threads; the third is streamed by `batchedmodel run`, stopped while
the others compute. A rate is of the whole text with its prompt. Rounds take turns.
"""

import http.client
import time
from pathlib import Path
from typing import Any, Final

import orjson

from bare_engine import loaded, rate
from bench_report import Figure, at_least, of_rounds, tell
from local_server import HOST, MODEL, LocalServer, ours
from smollm2 import checkpoint
from stream_plan import COMPLETIONS

DTYPE: Final = "bfloat16"
PROMPT: Final = list(range(100, 130))
TOKENS: Final = 64
ROUNDS: Final = 9
QUICK_ROUNDS: Final = 1
_ANSWER_SECONDS: Final = 120.0


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """The table; another commit has no part in it."""
    folder = checkpoint()
    generator, stock = loaded(folder, DTYPE), _stock(folder)
    model = {"source": {"path": str(folder)}, "parameters": {"dtype": DTYPE}}
    engine, generate, served = [], [], []
    with ours("ours", checkout=None, model=model, path=COMPLETIONS) as server:
        # The first round, which warms up, does not count.
        for _ in range(1 + (QUICK_ROUNDS if quick else ROUNDS)):
            engine.append(rate(generator, [(PROMPT, TOKENS)]))
            generate.append(_generated(stock))
            served.append(_served(server))
            tell(
                f"engine {engine[-1]:.1f}, generate {generate[-1]:.1f}, "
                f"served {served[-1]:.1f} tokens/s"
            )
    pairs = list(zip(engine, generate, served, strict=True))[1:]
    text = f"a lone text of SmolLM2-135M in {DTYPE}"
    return [
        of_rounds(
            lambda value: at_least(f"{text}: engine's loop over generate", value, "", 1.0),
            [own / stock for own, stock, _ in pairs],
        ),
        of_rounds(
            lambda value: at_least(f"{text}: served over generate", value, "", 0.92),
            [own / stock for _, stock, own in pairs],
        ),
        of_rounds(
            lambda value: Figure(name=f"{text}: generate", value=value, unit="tokens/s"),
            generate[1:],
        ),
    ]


def _stock(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, DTYPE)).eval()


def _generated(stock: Any) -> float:
    import torch

    began = time.perf_counter()
    with torch.inference_mode():
        stock.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return TOKENS / (time.perf_counter() - began)


def _served(server: LocalServer) -> float:
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with server.going_on():
        connection = http.client.HTTPConnection(HOST, server.port, timeout=_ANSWER_SECONDS)
        began = time.perf_counter()
        connection.request(
            "POST", COMPLETIONS, orjson.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - began
        connection.close()
    if answer.status != http.client.OK or b"[DONE]" not in text:
        raise SystemExit(f"a lone text was not served: {answer.status} {text[:300]!r}")
    return TOKENS / seconds
