"""What batches of each size take on a real device: the steps that a straight line hides.

Encoders with weights of chance, of the shapes of MiniLM and BERT base, and a vision transformer, in
half precision, called one after the other as a model server calls them; `graph` replays each size
from a captured graph, so that launching costs nothing. Each time is a median of ten, awaited.

    python bench/device_times.py [--quick] [--json FILE]

It needs a GPU, and writes the times themselves: a list of `{model, mode, length, rows, seconds,
fastest, slowest}`. Those of `bench/data/device_times.json` are from an H200.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

_ROWS: Final = (*range(1, 65), *range(68, 129, 4), *range(136, 257, 8))
_LENGTHS: Final = (16, 64, 128, 384)
_MOST_TOKENS: Final = 2**16
_WARM_UP: Final = 3
_TIMES: Final = 10

Forward = Callable[[torch.Tensor], object]


def _encoder(layers: int, width: int, heads: int) -> Forward:
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    model = BertModel(config, add_pooling_layer=False).half().cuda().eval()
    return lambda ids: model(input_ids=ids).last_hidden_state


def _vision() -> Forward:
    model = ViTModel(ViTConfig(), add_pooling_layer=False).half().cuda().eval()
    return lambda images: model(pixel_values=images).last_hidden_state


def _texts(rows: int, length: int) -> torch.Tensor:
    return torch.randint(5, 30_000, (rows, length), device="cuda")


def _images(rows: int, length: int) -> torch.Tensor:
    return torch.randn((rows, 3, 224, 224), device="cuda", dtype=torch.half)


def _captured(forward: Forward, given: torch.Tensor) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward(given)
    return lambda: graph.replay()


def _seconds(act: Callable[[], object]) -> list[float]:
    taken = []
    for number in range(_WARM_UP + _TIMES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        torch.cuda.synchronize()
        if number >= _WARM_UP:
            taken.append(time.perf_counter() - began)
    return sorted(taken)


def _measured(quick: bool) -> Iterator[dict[str, Any]]:
    models = {
        "minilm": (_encoder(6, 384, 12), _texts, _LENGTHS),
        "bert-base": (_encoder(12, 768, 12), _texts, _LENGTHS),
        "vit-base": (_vision(), _images, (197,)),
    }
    for name, (forward, made, lengths) in models.items():
        for length in lengths[:1] if quick else lengths:
            for rows in _ROWS[:: 8 if quick else 1]:
                if rows * length > _MOST_TOKENS:
                    continue
                given = made(rows, length)
                for _ in range(2):
                    forward(given)
                acts = {"eager": lambda: forward(given), "graph": _captured(forward, given)}  # noqa: B023
                for mode, act in acts.items():
                    times = _seconds(act)
                    yield {
                        "model": name,
                        "mode": mode,
                        "length": length,
                        "rows": rows,
                        "seconds": statistics.median(times),
                        "fastest": times[0],
                        "slowest": times[-1],
                    }


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the times of each model as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = []
    with torch.inference_mode():
        for one in _measured(options.quick):
            found.append(one)
            if one["rows"] in (1, 8, 16, 32, 64, 128, 256):
                words = (one["model"], one["mode"], one["length"], one["rows"])
                print(*words, f"{1e3 * one['seconds']:.3f} ms", flush=True)  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps(found), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
