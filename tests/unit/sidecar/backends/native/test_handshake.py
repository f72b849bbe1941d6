"""What the link learns of a model server at each handshake, from one on a Unix socket."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest_asyncio

from batchedmodel_contract.adapters.state import AdapterPhase, AdapterState
from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
    TextInput,
)
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.processes.server_api import ModelState, StateEvent
from batchedmodel_scheduling.core.policy import MemoryCap
from batchedmodel_sidecar.adapters.served import ServedAdapters
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import SharedSlots
from batchedmodel_sidecar.model import ReadyModel
from support.private_hop import PretendModel, serving
from support.simulate_command import PROFILE
from support.text_handlers import tokenizer_json

TEXT = TextInput(name="text", tokens="ids", max_tokens=16)


def described(text: TextInput) -> ModelDescription:
    return ModelDescription(
        name="m",
        version="1",
        platform="torch",
        inputs=(TensorSpec(name="ids", datatype=Datatype.INT64, shape=(RAGGED,), max_length=512),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(4,)),),
        cost_rule=CostRule.PACKED,
        text=text,
    )


class Listener:
    """Hands on each model that became ready."""

    def __init__(self) -> None:
        self.models: asyncio.Queue[ReadyModel] = asyncio.Queue()

    def model_ready(self, model: ReadyModel) -> None:
        self.models.put_nowait(model)

    def model_lost(self, reason: str) -> None:
        """It will come back."""

    def profile_measured(self, profile: Profile) -> None:
        raise AssertionError("nothing was measured")

    def memory_bound(self, cap: MemoryCap) -> None:
        """Nobody asks here."""


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def test_a_tokenizer_that_is_still_the_same_is_not_read_again(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """One of 54 MiB stops the loop for 1.8 s, in which callers of the version before wait."""
    file, shorter = tokenizer_json(), TextInput(name="text", tokens="ids", max_tokens=8)
    versions = [(file, TEXT), (file, TEXT), (file + b" ", TEXT), (file + b" ", shorter)]
    taken = asyncio.Semaphore(0)

    class Changing(PretendModel):
        async def states(self) -> AsyncIterator[StateEvent]:
            for self.tokenizer, text in versions:
                self.description = described(text)
                yield StateEvent(state=ModelState.READY, detail="", version="1")
                await taken.acquire()

    server = serving(tmp_path / "s", Changing(described(TEXT), PROFILE))
    await stack.enter_async_context(server)
    listener = Listener()
    link = NativeLink(
        "m", str(tmp_path / "s"), listener, SharedSlots(1), ByteBudget(1), ServedAdapters("m")
    )
    following = asyncio.create_task(link.follow())
    models = []
    try:
        async with asyncio.timeout(10):
            for _ in versions:
                models.append(await listener.models.get())
                taken.release()
    finally:
        following.cancel()
        await link.close()
    first, second, third, fourth = (model.tokens for model in models)
    assert first is not None
    assert second is first
    assert third is not first
    assert fourth is not third


async def test_the_labels_of_adapters_are_asked_for_once_and_many_long_reasons_make_a_line(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    failed = tuple(
        AdapterState(name=f"a{at}", number=at, phase=AdapterPhase.FAILED, reason="x" * 1024)
        for at in range(1, 512)
    )
    own = AdapterState(name="own", number=600, phase=AdapterPhase.READY, own_labels=True)
    gone = AdapterState(name="gone", number=601, phase=AdapterPhase.READY, own_labels=True)
    asked: list[int] = []
    taken = asyncio.Semaphore(0)

    class Adapting(PretendModel):
        tokenizer = tokenizer_json()

        async def states(self) -> AsyncIterator[StateEvent]:
            for version in ("1", "2"):
                yield StateEvent(
                    state=ModelState.READY,
                    detail="",
                    version=version,
                    adapters=(*failed, own, gone),
                )
                await taken.acquire()

        def labels(self, number: int) -> Sequence[str] | None:
            asked.append(number)
            return None if number == 601 else ("ham", "spam")

    server = serving(tmp_path / "s", Adapting(described(TEXT), PROFILE))
    await stack.enter_async_context(server)
    listener, served = Listener(), ServedAdapters("m")
    link = NativeLink("m", str(tmp_path / "s"), listener, SharedSlots(1), ByteBudget(1), served)
    following = asyncio.create_task(link.follow())
    try:
        async with asyncio.timeout(10):
            for _ in range(2):
                await listener.models.get()
                assert served.ready() == ["own"]
                chosen = served.choose("own")
                assert chosen is not None
                assert chosen.labels == ("ham", "spam")
                taken.release()
    finally:
        following.cancel()
        await link.close()
    assert asked.count(600) == 1


class Learning(Listener):
    """Hears of profiles as well."""

    def __init__(self) -> None:
        super().__init__()
        self.profiles: asyncio.Queue[Profile] = asyncio.Queue()

    def profile_measured(self, profile: Profile) -> None:
        self.profiles.put_nowait(profile)


async def test_a_profile_that_becomes_whole_is_learnt_without_another_handshake(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Until the sidecar's next start it went by two points."""
    numbers, described_times = asyncio.Queue[int](), 0

    class Measuring(PretendModel):
        tokenizer = tokenizer_json()

        async def states(self) -> AsyncIterator[StateEvent]:
            while True:
                number = await numbers.get()
                yield StateEvent(state=ModelState.READY, detail="", version="1", profile=number)

        def describe(self) -> ModelDescription:
            nonlocal described_times
            described_times += 1
            return self.description

    model = Measuring(described(TEXT), replace(PROFILE, partial=True))
    await stack.enter_async_context(serving(tmp_path / "s", model))
    listener = Learning()
    link = NativeLink(
        "m", str(tmp_path / "s"), listener, SharedSlots(1), ByteBudget(1), ServedAdapters("m")
    )
    following = asyncio.create_task(link.follow())
    async with asyncio.timeout(60):
        numbers.put_nowait(0)
        first = await listener.models.get()
        assert first.profile is not None
        assert first.profile.partial
        model.profile = PROFILE
        numbers.put_nowait(1)
        assert not (await listener.profiles.get()).partial
    now = link.status.model
    assert now is not None
    assert now.profile is not None
    assert not now.profile.partial
    assert now.users is first.users
    assert described_times == 1
    following.cancel()
    await link.close()
