"""The engine over random histories: every token is what its text alone would have got.

The runner here reads its blocks as a model reads keys and values: what it draws depends on every
token that lies in them, so a block that is lost, shared or copied wrongly shows.
"""

import random
from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.generation.frames import Finish, Sampling, Submit, Token
from batchedmodel_model_server.api.generator import Sampled, StepPart
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_scheduling.engine.step_cost import StepCost
from batchedmodel_scheduling.engine.step_planner import StepSettings

_VOCABULARY = 50
_CONTEXT = 64
_STOP = 7
_FREE = StepCost(base=0.0, prefill_token=0.0, sequence=0.0)


def _next(ids: Sequence[int], choice: int, seed: int) -> int:
    number = seed * 31 + choice
    for one in ids:
        number = (number * 1_000_003 + one + 1) % 1_000_000_007
    return number % _VOCABULARY


class _Runner:
    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._cache = [[-1] * block_tokens for _ in range(blocks)]

    def run(self, parts: Sequence[StepPart]) -> list[list[Sampled]]:
        size = self.block_tokens
        for part in parts:
            for at, token in enumerate(part.ids, part.start):
                self._cache[part.blocks[at // size]][at % size] = token
        found = []
        for part in parts:
            count = part.start + len(part.ids)
            seen = [self._cache[part.blocks[at // size]][at % size] for at in range(count)]
            found.append(
                [Sampled(_next(seen, draw.choice, draw.sampling.seed), 0.0) for draw in part.draws]
            )
        return found

    def copy_block(self, source: int, target: int) -> None:
        self._cache[target] = list(self._cache[source])


@given(st.integers(0, 2**32))
def test_each_token_is_what_its_text_alone_would_have_got(seed: int) -> None:
    rng = random.Random(seed)
    block_tokens = rng.choice([1, 2, 4, 16])
    blocks = max(6, rng.randint(64, 160) // block_tokens)
    settings = StepSettings(
        max_sequences=8,
        max_tokens_per_step=rng.randint(8, 64),
        block_tokens=block_tokens,
        blocks=blocks,
    )
    runner = _Runner(blocks, block_tokens)
    engine = Engine(
        runner,
        settings,
        _FREE,
        vocabulary=_VOCABULARY,
        max_context_tokens=min(_CONTEXT, blocks * block_tokens),
    )
    coming = [_submit(rng, number) for number in range(12)]
    sent: dict[int, Submit] = {}
    told: dict[tuple[int, int], list[Token]] = {}
    cancelled = set()
    while coming or engine.busy:
        while coming and rng.random() < 0.5:
            submit = coming.pop()
            engine.submit(submit, 0.0)
            sent[submit.id] = submit
        if sent and rng.random() < 0.05:
            cancelled.add(rng.choice(list(sent)))
            for number in cancelled:
                engine.cancel(number)
        engine.step(0.0)
        report, refused = engine.take(0.0)
        assert not refused
        for token in report.tokens:
            told.setdefault((token.id, token.choice), []).append(token)
    assert report.free_blocks == blocks
    for submit in sent.values():
        for choice in range(0 if submit.id in cancelled else submit.choices):
            _check(submit, choice, told[submit.id, choice])


def _submit(rng: random.Random, number: int) -> Submit:
    return Submit(
        id=number,
        ids=array("i", [rng.randrange(_VOCABULARY) for _ in range(rng.randint(1, 30))]),
        max_tokens=rng.randint(1, 30),
        choices=rng.choice([1, 1, 1, 3]),
        sampling=Sampling(seed=number),
        stop_ids=(_STOP,),
    )


def _check(submit: Submit, choice: int, tokens: list[Token]) -> None:
    ids = list(submit.ids)
    for token in tokens:
        assert token.token == _next(ids, choice, submit.id)
        ids.append(token.token)
    assert [token.finish for token in tokens[:-1]] == [Finish.NONE] * (len(tokens) - 1)
    last = Finish.STOP if ids[-1] == _STOP else Finish.LENGTH
    assert tokens[-1].finish is last
    assert (last is Finish.STOP) or len(tokens) == submit.max_tokens
